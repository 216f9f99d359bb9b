package attention

import (
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// shapesOf calls f for every head_dim, dtype and mask.
func shapesOf(f func(p Problem)) {
	for headDim := 8; headDim <= 256; headDim += 8 {
		for _, t := range dtype.All() {
			for _, causal := range []bool{false, true} {
				f(Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: headDim, DType: t, Causal: causal})
			}
		}
	}
}

// pathsOf returns the paths that a device should offer for inputs of type t.
func (d *fakeDevice) pathsOf(t dtype.DType) []Impl {
	return map[dtype.DType][]Impl{dtype.Float16: d.f16, dtype.BFloat16: d.bf16, dtype.Float32: d.f32}[t]
}

// TestChoose says that every device runs every shape that it can hold, on every path that it should,
// and that Auto takes the first of them, on a CPU device the last.
func TestChoose(t *testing.T) {
	for _, d := range fakeDevices() {
		require.Equal(t, d.family, family(&d.caps), d.caps.Name)
		shapesOf(func(p Problem) {
			paths := d.pathsOf(p.DType)
			for _, impl := range append(Impls(), Auto) {
				c, err := chooseForward(&d.caps, p, Options{Impl: impl})
				has := slices.Contains(paths, impl) || len(paths) > 0 && (impl == Auto || impl == Unfused)
				if has || p.DType == dtype.Float32 && onMatrices(impl) && err == nil {
					require.NoError(t, err, "%s: %v, %v", d.caps.Name, impl, p)
					require.NoError(t, c.Feasible(&d.caps, p), "%s: %v, %v", d.caps.Name, impl, p)
				} else {
					require.ErrorIs(t, err, vk.ErrUnsupported, "%s: %v, %v", d.caps.Name, impl, p)
				}
				switch {
				case err != nil:
				case impl != Auto:
					require.Equal(t, impl, c.Impl)
				case d.caps.Type == vk.CPU:
					require.Equal(t, Scalar, c.Impl)
				case p.DType != dtype.Float32:
					require.Equal(t, paths[0], c.Impl, "%s: %v", d.caps.Name, p)
				}
			}
		})
	}
	caps := leastDevice()
	caps.ScalarBlockLayout = false
	_, err := chooseForward(&caps, Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1, HeadDim: 8}, Options{})
	require.EqualError(t, err, "attention: scalar: the device has no scalar block layout: unsupported on this device")
}

// TestAuto says where a format goes to matrices in both passes: never on a CPU device.
func TestAuto(t *testing.T) {
	for name, want := range map[string]Impl{"NVIDIA H200": CoopMat2, "llvmpipe (LLVM 20.1.2, 256 bits)": Scalar, "Least with 16-bit storage": Scalar} {
		caps := fakeNamed(t, name)
		caps.MaxStorageBuffers = max(caps.MaxStorageBuffers, 7)
		for _, format := range dtype.All() {
			p := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 64, HeadDim: 64, DType: format}
			forward, err := chooseForward(&caps, p, Options{})
			require.NoError(t, err)
			backward, err := chooseBackward(&caps, p, Options{})
			require.NoError(t, err)
			require.Equal(t, []Impl{want, want}, []Impl{forward.Impl, backward.Impl}, "%s %v", name, format)
		}
	}
}

// TestFamily looks at names that hold each other.
func TestFamily(t *testing.T) {
	for _, c := range []struct {
		vendor uint32
		family string
		names  []string
	}{
		{chips.VendorNVIDIA, "hopper", []string{"NVIDIA GH200 480GB"}},
		{chips.VendorNVIDIA, "ampere", []string{"NVIDIA A30", "NVIDIA A100 80GB PCIe"}},
		{chips.VendorNVIDIA, "ampere-rtx", []string{"NVIDIA A10G", "NVIDIA RTX A3000 Laptop GPU", "NVIDIA RTX A4000"}},
		{chips.VendorNVIDIA, "ada", []string{"NVIDIA RTX 4000 SFF Ada Generation", "NVIDIA L40S", "NVIDIA GeForce RTX 4060 Laptop GPU"}},
		{chips.VendorNVIDIA, "blackwell-rtx", []string{"NVIDIA RTX PRO 6000 Blackwell Workstation Edition"}},
		{chips.VendorNVIDIA, "", []string{"Quadro RTX 4000", "NVIDIA GeForce GTX 1080", "Tesla V100-SXM2-16GB"}},
		{chips.VendorAMD, "rdna3", []string{"AMD Radeon Graphics (RADV PHOENIX)", "AMD Radeon 780M Graphics"}},
		{chips.VendorAMD, "rdna4", []string{"AMD Radeon RX 9060 XT"}},
		{chips.VendorAMD, "", []string{"AMD Radeon RX 6950 XT (RADV NAVI21)", "NVIDIA H100"}},
	} {
		for _, name := range c.names {
			require.Equal(t, c.family, family(&vk.Caps{VendorID: c.vendor, Name: name}), name)
		}
	}
}

// TestRows says that each row of the tables fits the devices of its family, up to the largest
// head_dim that it names (one that did not would be passed over in silence), and is what some problem
// gets on some device; and that a device with float16 matrices takes float32 on them up to head_dim 128.
func TestRows(t *testing.T) {
	forward, backward := map[*fwdRow]bool{}, map[*bwdRow]bool{}
	tried := map[string]bool{} // families
	for _, d := range fakeDevices() {
		// What the backward paths need beside matrices, and the fakes leave at the least.
		enough := d.caps
		enough.MaxStorageBuffers = max(enough.MaxStorageBuffers, fusedTensors)
		enough.MaxPushConstantsBytes = max(enough.MaxPushConstantsBytes, 256)
		shapesOf(func(p Problem) {
			for _, n := range [][3]int{
				{4, 1, 4096}, {4, 1, 1}, {4, 1, 32768}, {1, 1, 4096}, {4, 256, 256}, {4, 512, 4096}, {4, 1024, 1024}, {1, 2048, 2048}, {32, 2048, 2048}, {32, 512, 4096},
				{4, 1, 64}, {4, 512, 64}, {16, 512, 64}, {4, 32768, 64}, {4, 512, 32768}, {4, 32768, 32768}, {1, 1024, 1024}, {1, 256, 256}, {32, 256, 256},
			} {
				p.Batch, p.SeqQ, p.SeqKV = n[0], n[1], n[2]
				for _, impl := range Impls() {
					row, err := fwdTable.Find(&d.caps, &p, &table.Query[Config]{}, impl.String())
					forward[row] = true
					bwd, err2 := bwdTable.Find(&enough, &p, &table.Query[BackwardConfig]{}, impl.String())
					backward[bwd] = true
					if p.DType == dtype.Float32 && p.HeadDim <= 128 && slices.Contains(d.f16, impl) {
						require.NoError(t, err, "%s: %v, %v", d.caps.Name, impl, p)
						require.NoError(t, err2, "%s: %v, %v", d.caps.Name, impl, p)
					}
				}
			}
		})
		fits := func(formats table.Formats, rowFamily string, impl Impl, headDim int, feasible func(p Problem) error) {
			for _, format := range dtype.All() {
				paths := append(slices.Clone(d.pathsOf(format)), Unfused)
				if formats == table.OfFloat32 {
					paths = append(slices.Clone(d.f16), Unfused)
				}
				if rowFamily == "" || !table.OneOf(d.family, rowFamily) || !slices.Contains(paths, impl) || formats == table.OfFloat32 && format != dtype.Float32 {
					continue // rows of any device demand less and less
				}
				tried[rowFamily] = true
				p := square(1, 1)
				p.HeadDim, p.DType = headDim, format
				require.NoError(t, feasible(p), "%s: %v, %d", d.caps.Name, impl, headDim)
			}
		}
		for _, row := range fwdTable.Rows {
			fits(row.Formats, row.Family, row.Config.Impl, row.Shape.headDim, func(p Problem) error { return row.Config.Feasible(&d.caps, p) })
		}
		for _, row := range bwdTable.Rows {
			fits(row.Formats, row.Family, row.Config.Impl, row.Shape.headDim, func(p Problem) error { return row.Config.Feasible(&enough, p) })
		}
	}
	for i := range fwdTable.Rows {
		row := &fwdTable.Rows[i]
		require.True(t, forward[row], "row %d is never chosen: %+v", i, row)
		require.True(t, row.Family == "" || tried[row.Family], "row %d: no device is of family %s", i, row.Family)
		require.LessOrEqual(t, row.Config.Splits, 1, "row %d: the number of splits is the problem's", i)
	}
	for i := range bwdTable.Rows {
		require.True(t, backward[&bwdTable.Rows[i]], "row %d is never chosen: %+v", i, bwdTable.Rows[i])
	}
}

// TestFill says that large blocks wait for a problem that makes enough of them, by the device's number
// of units.
func TestFill(t *testing.T) {
	few := *fwdTable
	few.Rows = []fwdRow{{Family: "ada", Shape: shape{headDim: 64}, Fill: 1, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 64}}} // 128 rows
	caps := nvidia("NVIDIA GeForce RTX 4090", 128, true)
	p := Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 512, SeqKV: 512, HeadDim: 64, DType: dtype.Float16}
	for _, c := range []struct {
		batch, seqQ int
		units       uint32
		want        bool
	}{
		{1, 512, 128, false}, // 32 blocks
		{4, 512, 128, true},  // 128
		{4, 511, 128, true},  // 128, the last of each head not full
		{4, 384, 128, false}, // 96
		{4, 512, 129, false},
		{1, 512, 32, true},
		{1, 1, 0, true}, // a driver that does not tell
	} {
		p.Batch, p.SeqQ, caps.ComputeUnits = c.batch, c.seqQ, c.units
		_, err := few.Find(&caps, &p, &table.Query[Config]{}, CoopMat2.String())
		require.Equal(t, c.want, err == nil, c)
	}
	var rows []int
	for _, p.Batch = range []int{1, 16} {
		p.SeqQ, caps.ComputeUnits = 1024, 128
		c, err := chooseForward(&caps, p, Options{Impl: CoopMat2})
		require.NoError(t, err)
		rows = append(rows, c.blockRows(&caps, p.DType))
	}
	require.Less(t, rows[0], rows[1])
}

// TestCandidates says that candidates and variants are feasible, different, not too many, led by the
// table's choice and then by what is like it.
func TestCandidates(t *testing.T) {
	for _, d := range fakeDevices() {
		for _, headDim := range []int{8, 64, 128, 256} {
			for _, dt := range dtype.All() {
				for _, impl := range Impls() {
					p := Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: headDim, DType: dt}
					list := candidates(&d.caps, p, impl)
					start, err := chooseForward(&d.caps, p, Options{Impl: impl})
					checkCandidates(t, list, start, err, func(c Config) error { return c.Feasible(&d.caps, p) },
						func(c Config) []Config { return variants(&d.caps, p, c) })
					for i := 2; i < len(list); i++ {
						require.GreaterOrEqual(t, distance(list[i], start), distance(list[i-1], start), "%v after %v", list[i], list[i-1])
					}

					p.SeqQ, p.SeqKV = 512, 64
					first, err := chooseBackward(&d.caps, p, Options{Impl: impl})
					checkCandidates(t, backwardCandidates(&d.caps, p, impl), first, err, func(c BackwardConfig) error { return c.Feasible(&d.caps, p) },
						func(c BackwardConfig) []BackwardConfig { return backwardVariants(&d.caps, p, c) })
				}
			}
		}
	}
}

// checkCandidates checks a list of candidates where the table chooses start, or err says why there is
// nothing to choose.
func checkCandidates[C comparable](t *testing.T, list []C, start C, err error, feasible func(C) error, variants func(C) []C) {
	if err != nil {
		require.Empty(t, list)
		return
	}
	require.Equal(t, start, list[0])
	require.True(t, len(list) >= 2 && len(list) < 200 && different(list), "%v", list)
	for i, c := range list {
		require.NoError(t, feasible(c))
		if i%7 != 0 {
			continue
		}
		all := append(variants(c), c)
		require.True(t, different(all), "%v", c)
		for _, v := range all {
			require.NoError(t, feasible(v))
		}
	}
}

// different reports whether no two of a list are equal.
func different[T comparable](list []T) bool {
	seen := make(map[T]bool, len(list))
	for _, x := range list {
		seen[x] = true
	}
	return len(seen) == len(list)
}

// TestCandidatesSmall says that blocks far larger than a small problem are left out, and that one size
// is always left.
func TestCandidatesSmall(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqKV: 4096, HeadDim: 64, DType: dtype.Float16}
	for _, c := range []struct{ seqQ, least, most int }{{1, 16, 16}, {20, 16, 32}, {64, 16, 64}, {4096, 16, 256}} {
		p.SeqQ = c.seqQ
		var rows []int
		for _, config := range candidates(&caps, p, CoopMat2)[1:] { // the first is the table's
			rows = append(rows, config.blockRows(&caps, p.DType))
		}
		require.Equal(t, []int{c.least, c.most}, []int{slices.Min(rows), slices.Max(rows)}, "seq_q %d", c.seqQ)
	}
}

// TestCandidatesVary says that every choice that a configuration and its tiles offer is tried on some
// path: a new field needs a place in the candidates or in the variants.
func TestCandidatesVary(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	forward, backward := map[string][]any{}, map[string][]any{}
	for _, n := range [][3]int{{4, 4096, 4096}, {1, 1, 4096}, {4, 256, 256}} { // one of them has fewer blocks of rows than the device units
		p := Problem{Batch: n[0], NumHeads: 16, NumKVHeads: 16, SeqQ: n[1], SeqKV: n[2], HeadDim: 64, DType: dtype.Float16}
		for _, impl := range []Impl{CoopMat2, Scalar} {
			for _, c := range candidates(&caps, p, impl) {
				for _, v := range append(variants(&caps, p, c), c) {
					note(forward, reflect.ValueOf(v), "")
				}
			}
			q := Problem{Batch: n[0] * n[0], NumHeads: 16, NumKVHeads: 4, SeqQ: 512, SeqKV: 1024, HeadDim: 64, DType: dtype.Float16}
			for i, c := range backwardCandidates(&caps, q, impl) {
				note(backward, reflect.ValueOf(c), "")
				if i%5 == 0 || c.fused() || c.stored() {
					for _, v := range backwardVariants(&caps, q, c) {
						note(backward, reflect.ValueOf(v), "")
					}
				}
			}
		}
	}
	// What is for tests alone, or of path scalar, which has no such kernels.
	fixed := []string{"Detour", "DKV.Detour", "DQ.Detour", "Fused.Detour", "Stored.Detour", "Stored.Prefetch", "Stored.PeelMask"}
	for _, tile := range []string{"Stored.", "Fused."} {
		fixed = append(fixed, tile+"Threads", tile+"ThreadsX", tile+"Own", tile+"Depth", tile+"Slice")
	}
	three := []string{"Threads", "ThreadsX", "BlockM", "Depth", "ValueRows", "Subgroups", "RowTiles", "LoadAhead"} // 0 is the other path's
	for name, seen := range forward {
		switch {
		case slices.Contains(fixed, name):
		case name == "Splits":
			require.GreaterOrEqual(t, len(seen), 4, "none, what the rule says, half and twice that")
		case slices.Contains(three, name):
			require.GreaterOrEqual(t, len(seen), 3, name)
		default:
			require.GreaterOrEqual(t, len(seen), 2, name)
		}
	}
	for name, seen := range backward {
		require.True(t, len(seen) >= 2 || slices.Contains(fixed, name), name)
	}
}

// note adds the values of the fields of a struct, and of structs in it.
func note(values map[string][]any, v reflect.Value, prefix string) {
	for i := range v.NumField() {
		name := prefix + v.Type().Field(i).Name
		if v.Field(i).Kind() == reflect.Struct {
			note(values, v.Field(i), name+".")
		} else if x := v.Field(i).Interface(); !slices.Contains(values[name], x) {
			values[name] = append(values[name], x)
		}
	}
}

// TestTableRow has the row of a configuration as the table has it.
func TestTableRow(t *testing.T) {
	caps, least := nvidia("NVIDIA A30", 56, true), leastDevice()
	p := Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 500, SeqKV: 512, HeadDim: 64, DType: dtype.Float16, Causal: true}
	c := Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 64, Prefetch: true, Splits: 2}
	require.Equal(t, `{Family: "ampere", Formats: table.Of16Bits, Shape: shape{headDim: 64, causal: true}, Fill: 0.57, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, Prefetch: true, BlockN: 64}},`,
		tableRow(&caps, p, c, fwdSpace.Fill(&caps, p, c)))
	tile := BackwardTile{Subgroups: 4, RowTiles: 2, Stream: 32, PeelMask: true}
	require.Equal(t, `{Family: "ampere", Formats: table.Of16Bits, Shape: shape{headDim: 64, causal: true}, Config: BackwardConfig{Impl: CoopMat, Fused: BackwardTile{Stream: 32, Subgroups: 4, RowTiles: 2, PeelMask: true}}},`,
		backwardTableRow(&caps, p, BackwardConfig{Impl: CoopMat, Fused: tile, Splits: 3}, 0))
	p.Causal = false
	require.Equal(t, `{Shape: shape{headDim: 64}, Config: Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, Depth: 8, ValueRows: 4, BlockN: 16}},`,
		tableRow(&least, p, Config{Impl: Scalar, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 16, Depth: 8, ValueRows: 4}, 0))
}

// BenchmarkChoose is part of every recorded call.
func BenchmarkChoose(b *testing.B) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: 128}
	for b.Loop() {
		if _, err := chooseForward(&caps, p, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}
