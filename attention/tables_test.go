package attention

import (
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
		require.Equal(t, d.family, chips.Family(&d.caps), d.caps.Name)
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

// TestAuto says where both passes go to matrices: never on a CPU device, and on RDNA3 where not all tiles spill.
func TestAuto(t *testing.T) {
	rdna3, f16, f32 := "AMD Radeon RX 7900 XTX (RADV NAVI31)", []dtype.DType{dtype.Float16}, []dtype.DType{dtype.Float32}
	for _, c := range []struct {
		device            string
		formats           []dtype.DType
		headDim           int
		forward, backward Impl
	}{
		{"NVIDIA H200", dtype.All(), 64, CoopMat2, CoopMat2},
		{"llvmpipe (LLVM 20.1.2, 256 bits)", dtype.All(), 64, Scalar, Scalar}, {"Least with 16-bit storage", dtype.All(), 64, Scalar, Scalar},
		{rdna3, f16, 128, CoopMat, CoopMat}, {rdna3, f16, 136, CoopMat, Scalar}, {rdna3, f16, 256, CoopMat, Scalar},
		{rdna3, f32, 32, CoopMat, CoopMat}, {rdna3, f32, 64, CoopMat, Scalar}, {rdna3, f32, 72, Scalar, Scalar},
	} {
		caps := fakeNamed(t, c.device)
		caps.MaxStorageBuffers = max(caps.MaxStorageBuffers, 7)
		for _, format := range c.formats {
			p := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 64, HeadDim: c.headDim, DType: format}
			forward, err := chooseForward(&caps, p, Options{})
			require.NoError(t, err)
			backward, err := chooseBackward(&caps, p, Options{})
			require.NoError(t, err)
			require.Equal(t, []Impl{c.forward, c.backward}, []Impl{forward.Impl, backward.Impl}, "%v %v", c, format)
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
			require.Equal(t, c.family, chips.Family(&vk.Caps{VendorID: c.vendor, Name: name}), name)
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
					quant := p
					quant.Quant = dtype.QuantInt8
					row, _ = fwdTable.Find(&d.caps, &quant, &table.Query[Config]{}, impl.String())
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
		for _, row := range fwdTable.Rows() {
			fits(row.Formats, row.Family, row.Config.Impl, row.Shape.headDim, func(p Problem) error { return row.Config.Feasible(&d.caps, p) })
		}
		for _, row := range bwdTable.Rows() {
			fits(row.Formats, row.Family, row.Config.Impl, row.Shape.headDim, func(p Problem) error { return row.Config.Feasible(&enough, p) })
		}
	}
	for i := range fwdTable.Rows() {
		row := &fwdTable.Rows()[i]
		require.True(t, forward[row], "row %d is never chosen: %+v", i, row)
		require.True(t, row.Family == "" || tried[row.Family], "row %d: no device is of family %s", i, row.Family)
		require.LessOrEqual(t, row.Config.Splits, 1, "row %d: the number of splits is the problem's", i)
	}
	for i := range bwdTable.Rows() {
		require.True(t, backward[&bwdTable.Rows()[i]], "row %d is never chosen: %+v", i, bwdTable.Rows()[i])
	}
}

// TestFill says that large blocks wait for a problem that makes enough of them, by the device's number
// of units.
func TestFill(t *testing.T) {
	few := *fwdTable
	few.Rows = func() []fwdRow {
		return []fwdRow{{Family: "ada", Shape: shape{headDim: 64}, Fill: 1, Config: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 2, BlockN: 64}}} // 128 rows
	}
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

// TestTurns wants groups of heads under a causal mask alone, as large as memory and the device's limits
// allow. TestLimits has a device run them.
func TestTurns(t *testing.T) {
	for _, limit := range [][3]uint32{{1<<31 - 1, 65535, 65535}, {4, 64, 8}, {1 << 16, 3, 65535}, {1 << 16, 64, 1}} {
		for _, n := range [][5]int{{1, 1, 1, 1, 1}, {3, 6, 3, 17, 300}, {8, 12, 12, 1000, 1000}, {2, 16, 2, 4096, 4096}, {8, 32, 8, 9000, 50000}, {3, 7, 7, 1024, 77}} {
			p := Problem{Batch: n[0], NumHeads: n[1], NumKVHeads: n[2], SeqQ: n[3], SeqKV: n[4], HeadDim: 64, DType: dtype.BFloat16}
			rows, keys, walked := int(groups(p.SeqQ, 128)), int(groups(p.SeqKV, 128)), float64(p.NumHeads/p.NumKVHeads)
			require.Zero(t, rowGroup(&p, rows, limit)+keyGroup(&p, keys, limit))
			p.Causal = true
			for _, c := range []struct {
				group, blocks, heads int
				bytes                float64 // that a head walks over
			}{{rowGroup(&p, rows, limit), rows, p.NumHeads, 4 * 64 * float64(p.SeqKV) / walked}, {keyGroup(&p, keys, limit), keys, p.NumKVHeads, 4 * 64 * float64(p.SeqQ) * walked}} {
				all := p.Batch * c.heads
				fits := func(n int) bool { return shared(all, n, c.blocks, limit) && float64(n)*c.bytes <= groupBytes }
				require.True(t, c.group == 0 || fits(c.group), "%v: %+v", p, c)
				for n := c.group + 1; c.group == 0 && n <= all; n++ {
					require.False(t, n > 1 && fits(n), "%v: %d heads could take turns: %+v", p, n, c)
				}
			}
		}
	}
}

// shared reports whether groups of n heads share out all heads, within the limits of a dispatch.
func shared(heads, n, blocks int, limit [3]uint32) bool {
	return heads%n == 0 && n <= min(maxGroup, int(limit[0])) && blocks <= int(limit[1]) && heads/n <= int(limit[2])
}
