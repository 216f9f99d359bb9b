package attention

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestMatrixDemands has the reason for each thing that a device lacks for the matrix paths, and that
// Auto then takes the next path.
func TestMatrixDemands(t *testing.T) {
	p := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 64, HeadDim: 64, DType: dtype.BFloat16}
	for _, c := range []struct {
		lose func(*vk.Caps)
		impl Impl // the last that refuses
		want string
	}{
		{func(c *vk.Caps) { c.CoopMat2.Reductions = false }, CoopMat2, "the device has no cooperative-matrix reductions (VK_NV_cooperative_matrix2)"},
		{func(c *vk.Caps) { c.CoopMat2.Conversions = false }, CoopMat2, "the device has no cooperative-matrix conversions (VK_NV_cooperative_matrix2)"},
		{func(c *vk.Caps) { c.CoopMat2.PerElement = false }, CoopMat2, "the device has no cooperative-matrix per-element operations (VK_NV_cooperative_matrix2)"},
		{func(c *vk.Caps) { c.CoopMat = false }, CoopMat, "the device has no VK_KHR_cooperative_matrix"},
		{func(c *vk.Caps) { c.APIVersion = vk.MakeVersion(1, 2, 300) }, CoopMat, "the device has Vulkan 1.2.300, matrices need 1.3"},
		{func(c *vk.Caps) { c.VulkanMemoryModel = false }, CoopMat, "the device has no Vulkan memory model"},
		{func(c *vk.Caps) { c.Int16 = false }, CoopMat, "the device has no 16-bit integers"},
		{func(c *vk.Caps) { c.ComputeFullSubgroups = false }, CoopMat, "the device cannot promise full subgroups"},
		{func(c *vk.Caps) { c.SubgroupOps &^= vk.SubgroupVote }, CoopMat, "the device has no votes of subgroups"},
		{func(c *vk.Caps) { c.BFloat16CoopMat = false }, CoopMat, "the device has no bfloat16 cooperative matrices"},
		{func(c *vk.Caps) { c.CoopMatShapes = nil }, CoopMat, "no bfloat16 cooperative-matrix shape of the device has float32 sums and N = K"},
	} {
		caps := nvidia("NVIDIA H200", 132, true)
		c.lose(&caps)
		for _, impl := range []Impl{CoopMat2, CoopMat} {
			err := Supports(&caps, p, kit.Forward, Options{Impl: impl})
			if impl > c.impl {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, vk.ErrUnsupported)
			require.EqualError(t, err, "attention: "+impl.String()+": "+c.want+": unsupported on this device")
		}
		config, err := chooseForward(&caps, p, Options{})
		require.NoError(t, err)
		require.Equal(t, c.impl+1, config.Impl)
	}
}

// An asked is a pass that a device is asked for.
type asked struct {
	Problem
	vk.Caps
	pass kit.Pass
	f    Config // of the pass, or b
	b    BackwardConfig
	impl Impl // instead of f and b
}

func (x *asked) feasible() error {
	switch {
	case x.impl != Auto:
		return Supports(&x.Caps, x.Problem, x.pass, Options{Impl: x.impl})
	case x.pass == kit.Backward:
		return x.b.Feasible(&x.Caps, x.Problem)
	}
	return x.f.Feasible(&x.Caps, x.Problem)
}

// TestUnsupported has the reason for each problem and configuration that a device does not take; ""
// where it takes it.
func TestUnsupported(t *testing.T) {
	h200, other, least := nvidia("NVIDIA H200", 132, true), nvidia("NVIDIA H200", 132, true), leastDevice()
	other.DriverID = 3
	p := Problem{Batch: 2, NumHeads: 8, NumKVHeads: 8, SeqQ: 4, SeqKV: 300, HeadDim: 64, DType: dtype.Float16}
	small := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float16}
	long := Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 640, HeadDim: 16, DType: dtype.Float16}
	features, two, short := p, long, long
	short.SeqKV = 32
	features.Window, features.Sinks, two.NumHeads = Window{On: true, Left: 5}, true, 2
	tile, one := BackwardTile{Subgroups: 2, RowTiles: 1, BlockN: 16}, BackwardTile{Subgroups: 1, RowTiles: 1, BlockN: 16}
	const lone = "coopmat: the driver loses the order of shared memory in workgroups of one subgroup"
	type row struct {
		change func(x *asked)
		want   string
	}
	for _, group := range []struct {
		base asked
		rows []row
	}{
		{asked{Problem: p, Caps: h200, f: Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 64}}, []row{
			{func(x *asked) { x.f.Splits, x.MaxStorageBufferRange = 5, 5<<14 }, ""},
			{func(x *asked) { x.f.Splits = 6 }, "coopmat2: splits=6 are more than the 5 tiles of seq_kv=300"},
			{func(x *asked) { x.f.Splits, x.MaxStorageBufferRange = 5, 5<<14-1 }, "coopmat2: partial results of splits=5 take 81920 bytes, more than the device's 81919"},
			{func(x *asked) { x.f.Splits = -1 }, "coopmat2: splits=-1 is negative"},
			{func(x *asked) { x.f.Subgroups = 1 }, ""},
			{func(x *asked) { x.f.Impl, x.f.Subgroups = CoopMat, 1 }, lone},
			{func(x *asked) { x.f.Impl, x.f.Subgroups, x.Caps = CoopMat, 1, other }, ""},
			{func(x *asked) { x.f.Impl, x.f.Subgroups = CoopMat, 2 }, ""},
		}},
		{asked{Problem: p, Caps: h200, f: Config{Impl: Unfused, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 16, Depth: 32, Splits: 1}}, []row{
			{func(x *asked) {}, ""},
			{func(x *asked) { x.f.Splits = 2 }, "unfused: splits=2, but no kernel divides keys of such a problem"},
		}},
		{asked{Problem: features, Caps: h200}, []row{
			{func(x *asked) { x.impl, x.MaxPushConstantsBytes = CoopMat2, 128 }, "coopmat2: window, sinks take 212 bytes of push constants, more than the device's 128"},
			{func(x *asked) { x.impl, x.MaxPushConstantsBytes = Unfused, 128 }, "unfused: window, sinks take 168 bytes of push constants, more than the device's 128"},
			{func(x *asked) { x.impl, x.DType, x.Caps = Scalar, dtype.Float32, least }, "scalar: window, sinks take 11 storage buffers, more than the device's 4"},
			{func(x *asked) { x.impl, x.DType, x.Caps = Unfused, dtype.Float32, least }, "unfused: window, sinks take 9 storage buffers, more than the device's 4"},
		}},
		{asked{Problem: small, Caps: h200, pass: kit.Backward, impl: Scalar}, []row{
			{func(x *asked) { x.HeadDim, x.impl, x.MaxSharedMemoryBytes = 32, Unfused, 8000 }, "unfused: 13824 bytes of shared memory are more than the device's 8000"},
			{func(x *asked) { x.HeadDim, x.MaxSharedMemoryBytes = 32, 8000 }, "scalar: 13824 bytes of shared memory are more than the device's 8000"},
			{func(x *asked) { x.HeadDim, x.MaxWorkgroupInvocations = 32, 64 }, "scalar: a workgroup of 128 invocations is larger than the device's 64"},
			{func(x *asked) { x.Softcap, x.Sinks, x.MaxStorageBuffers = 5, true, 12 }, "scalar: softcap, sinks take 13 storage buffers, more than the device's 12"},
			{func(x *asked) { x.Softcap, x.MaxPushConstantsBytes = 5, 223 }, "scalar: softcap take 224 bytes of push constants, more than the device's 223"},
			{func(x *asked) { x.Storage16 = false }, "scalar: float16 needs 16-bit storage"},
			{func(x *asked) { x.MaxStorageBuffers = 6 }, "scalar: the backward pass takes 7 storage buffers, more than the device's 6"},
			{func(x *asked) { x.impl, x.b = Auto, BackwardConfig{Impl: Scalar} }, "scalar: a tile size of {Subgroups:0 "},
			{func(x *asked) {
				wide := BackwardTile{Subgroups: 4, RowTiles: 1, BlockN: 32, PeelMask: true}
				x.DType, x.impl, x.b = dtype.Float32, Auto, BackwardConfig{Impl: CoopMat2, DKV: wide, DQ: BackwardTile{Subgroups: 4, RowTiles: 2, BlockN: 16}}
			}, "coopmat2: one column of matrices of 128 rows does not fit in a tile of 16"},
		}},
		{asked{Problem: long, Caps: h200, pass: kit.Backward, b: BackwardConfig{Impl: CoopMat2, DKV: one, DQ: one}}, []row{
			{func(x *asked) {}, ""},
			{func(x *asked) { x.b.Impl = CoopMat }, lone},
			{func(x *asked) { x.b.Impl, x.b.DKV = CoopMat, tile }, lone},
			{func(x *asked) { x.b.Impl, x.b.DQ = CoopMat, tile }, lone},
			{func(x *asked) { x.b.Impl, x.b.Fused = CoopMat, one }, lone},
			{func(x *asked) { x.b.Impl, x.Caps = CoopMat, other }, ""},
		}},
		{asked{Problem: short, Caps: h200, pass: kit.Backward, b: BackwardConfig{Impl: CoopMat2, Fused: tile}}, []row{
			{func(x *asked) {}, ""},
			{func(x *asked) { x.b.Impl = Scalar }, "scalar: no kernel computes all gradients of float16 at once"},
			{func(x *asked) { x.DType = dtype.Float32 }, "coopmat2: no kernel computes all gradients of float32 at once"},
			{func(x *asked) { x.Softcap, x.Sinks = 5, true }, "coopmat2: no kernel computes all gradients at once with softcap, sinks"},
			{func(x *asked) { x.MaxStorageBuffers = 7 }, "coopmat2: all gradients at once take 8 storage buffers, more than the device's 7"},
			{func(x *asked) { x.MaxPushConstantsBytes = 128 }, "coopmat2: all gradients at once take 144 bytes of push constants, more than the device's 128"},
			{func(x *asked) { x.b.Fused.Subgroups = 0 }, "coopmat2: a tile size of {Subgroups:0 RowTiles:1 "},
			{func(x *asked) { x.b.Fused.BlockN = 20 }, "coopmat2: by20 is not a multiple of the matrix size 16"},
			// Both tiles and their statistics fit, K and dX beside them do not.
			{func(x *asked) { x.MaxSharedMemoryBytes = 2*16*(2+1)*16 + 16*8 }, "coopmat2: 4736 bytes of shared memory are more than the device's 1664"},
			{func(x *asked) { x.SeqKV = 33 }, "coopmat2: all gradients at once take up to 32 keys, seq_kv=33 are more"},
		}},
		{asked{Problem: two, Caps: h200, pass: kit.Backward, b: BackwardConfig{Impl: CoopMat2, DQ: tile, Stored: tile}}, []row{
			{func(x *asked) {}, ""},
			{func(x *asked) { x.MaxPushConstantsBytes = 128 }, ""},
			{func(x *asked) { x.b.Impl = Scalar }, "scalar: no kernel stores weights of float16"},
			{func(x *asked) { x.DType = dtype.Float32 }, "coopmat2: no kernel stores weights of float32"},
			{func(x *asked) { x.Softcap, x.MaxPushConstantsBytes = 5, 231 }, "coopmat2: storing weights takes 232 bytes of push constants, more than the device's 231"},
			{func(x *asked) { x.b.Chunk = -1 }, "coopmat2: chunk=-1 is negative"},
			{func(x *asked) { x.b.DQ.Subgroups = 0 }, "coopmat2: a tile size of {Subgroups:0 RowTiles:1 "},
			{func(x *asked) { x.b.Stored.RowTiles = 0 }, "coopmat2: a tile size of {Subgroups:2 RowTiles:0 "},
			{func(x *asked) { x.b.DQ.Subgroups, x.b.Stored.Subgroups, x.b.DQ.BlockN = 3, 3, 32 }, "coopmat2: by32 does not divide a block of 48 rows, or 8 does not"},
			{func(x *asked) { x.b.Stored.BlockN = 64 }, "coopmat2: by64 is not a multiple of the matrix size 16 that divides a block of 32 rows"},
			{func(x *asked) { x.b.Stored.Subgroups = 3 }, "coopmat2: 3 subgroups of 16 keys do not share out a block of 32 keys evenly"},
			{func(x *asked) { x.b.Stored.Subgroups = 64 }, "coopmat2: a workgroup of 2048 invocations is larger than the device's 1024"},
			{func(x *asked) { x.MaxStorageBufferRange = 8*2*64 + 64*640*4 + 2*4*640*16 - 1 }, "coopmat2: the weights of 1 heads at a time take 245760 bytes, more than the 245759 that there are for them"},
		}},
	} {
		for i, c := range group.rows {
			x := group.base
			c.change(&x)
			err := x.feasible()
			if c.want == "" {
				require.NoError(t, err)
				continue
			}
			require.ErrorIs(t, err, vk.ErrUnsupported, "row %d: %s", i, c.want)
			require.ErrorContains(t, err, "attention: "+c.want)
		}
	}
}

// TestFeatureKernelsOfLeast wants a kernel with features of every path for devices that have little for it.
func TestFeatureKernelsOfLeast(t *testing.T) {
	h200, least := nvidia("NVIDIA H200", 132, true), leastDevice()
	p := Problem{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: 64, SeqKV: 64, HeadDim: 64, Window: Window{On: true, Left: 5}, Sinks: true}
	for _, impl := range Impls() {
		for _, p.DType = range dtype.All() {
			require.NoError(t, Supports(&h200, p, kit.Forward, Options{Impl: impl}), "%v %v", impl, p.DType)
		}
	}
	least.Storage16, least.MaxStorageBuffers, least.MaxPushConstantsBytes = true, 13, 224
	for _, p.DType = range dtype.All() {
		for p.HeadDim = 8; p.HeadDim <= 256; p.HeadDim += 8 {
			p.ValueDim, p.Bias.On, p.KeyMask = 264-p.HeadDim, true, true
			p.Dropout = Dropout{P: 0.5, Seeded: true}
			for _, impl := range []Impl{Scalar, Unfused} {
				require.NoError(t, Supports(&least, p, kit.Forward, Options{Impl: impl}))
				require.NoError(t, Supports(&least, p, kit.Backward, Options{Impl: impl}))
			}
		}
	}
}

// TestSplitsToFill says what Choose divides on a device of 132 units: few blocks with many keys, into
// two workgroups for each unit at most.
func TestSplitsToFill(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	decode := Problem{Batch: 1, NumHeads: 32, NumKVHeads: 8, SeqQ: 1, SeqKV: 65536, HeadDim: 128, DType: dtype.Float16}
	for _, c := range []struct {
		name   string
		change func(*Problem, *vk.Caps)
		impl   Impl
		want   int
	}{
		{"8 blocks of packed heads", func(p *Problem, c *vk.Caps) {}, CoopMat2, 33},
		{"32 blocks, as the mask does not allow packing", func(p *Problem, c *vk.Caps) { p.Causal, p.CausalAlign = true, TopLeft }, CoopMat2, 8},
		{"512 keys each", func(p *Problem, c *vk.Caps) { p.SeqKV = 4096 }, CoopMat2, 8},
		{"too few keys for two", func(p *Problem, c *vk.Caps) { p.SeqKV = 1023 }, CoopMat2, 0},
		{"half of the device has work", func(p *Problem, c *vk.Caps) { p.NumHeads, p.NumKVHeads = 66, 66 }, CoopMat2, 4},
		{"more than half", func(p *Problem, c *vk.Caps) { p.NumHeads, p.NumKVHeads = 67, 67 }, CoopMat2, 0},
		{"many rows", func(p *Problem, c *vk.Caps) { p.SeqQ = 4096 }, CoopMat2, 0},
		{"units unknown", func(p *Problem, c *vk.Caps) { c.ComputeUnits = 0 }, CoopMat2, 0},
		{"no memory for partial results", func(p *Problem, c *vk.Caps) { c.MaxAllocationBytes = 100 << 10 }, CoopMat2, 0},
		{"coopmat", func(p *Problem, c *vk.Caps) {}, CoopMat, 33},
		{"scalar", func(p *Problem, c *vk.Caps) { p.DType = dtype.Float32 }, Scalar, 33},
		{"float32 on matrices", func(p *Problem, c *vk.Caps) { p.DType = dtype.Float32 }, CoopMat2, 33},
		{"unfused", func(p *Problem, c *vk.Caps) {}, Unfused, 0},
	} {
		p, on := decode, caps
		c.change(&p, &on)
		got, err := chooseForward(&on, p, Options{Impl: c.impl})
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, got.Splits, c.name)
		got.Splits = 1 // a row may forbid them
		require.Equal(t, 1, fwdTable.Fit(got, &on, &p, false).Splits, c.name)
	}
}

// TestCombineSpec says that the rows and teams of a workgroup fit it, whatever the device allows, and
// that some splits are always taken at once.
func TestCombineSpec(t *testing.T) {
	least, large := leastDevice(), nvidia("NVIDIA H200", 132, true)
	for headDim := 8; headDim <= 256; headDim += 8 {
		for splits := 2; splits < 300; splits++ {
			for _, caps := range []*vk.Caps{&least, &large} {
				s := newCombineSpec(caps, Problem{HeadDim: headDim}, splits)
				used := uint32(s.rows()) * s.Teams * s.HeadDim / 4
				require.True(t, s.rows() >= 1 && s.Teams >= 2 && int(s.Teams) <= splits, "%+v", s)
				require.True(t, used <= s.WorkgroupSize && s.WorkgroupSize <= caps.MaxWorkgroupInvocations, "%+v", s)
			}
		}
	}
}

// pagesSeen counts blocks of rows by keys that some row sees of a sequence, were its last block of rows whole, and the
// most of a block of rows.
func pagesSeen(p *Problem, seqQ, seqKV, block int) (head, most int) {
	mask, spec := p.MaskOf(seqQ, seqKV), newFeatureSpec(p)
	blocks := (seqKV + block - 1) / block
	for row := 0; row < seqQ; row += block {
		n := 0
		for j := range blocks {
			first, last := j*block, j*block+block-1 // keys; the last block is counted whole
			before := spec.WindowRight && first > row+block-1+mask.Shift+mask.Right
			after := spec.WindowLeft && last < row+mask.Shift-mask.Left
			if !before && !after {
				n++
			}
		}
		head, most = head+n, max(most, n)
	}
	return head, most
}

// TestPageRoom counts pages one by one: there is room for the pages of a head and of a block of
// rows, whatever sequences are packed. Unless p cuts pages, there is room for no page more.
func TestPageRoom(t *testing.T) {
	windows := []Window{{}, {true, 0, 0}, {true, 20, 0}, {true, 3, 7}, {true, Unlimited, 9}, {true, 9, Unlimited}, {true, 33, 31}, {true, 1 << 30, 1 << 30}}
	for _, block := range []int{8, 24} {
		for _, seq := range [][2]int{{1, 1}, {1, 40}, {40, 1}, {16, 32}, {25, 40}, {40, 25}, {33, 31}} {
			for _, window := range windows {
				for _, align := range []Align{BottomRight, TopLeft} {
					for _, causal := range []bool{false, true} {
						p := Problem{SeqQ: seq[0], SeqKV: seq[1], Causal: causal, CausalAlign: align, Window: window}
						what := fmt.Sprintf("block %d, %dx%d, window %v, %v, causal %v", block, p.SeqQ, p.SeqKV, window, align, causal)
						room := newPageRoom(&p, block)
						head, most := pagesSeen(&p, p.SeqQ, p.SeqKV, block)
						if !p.cutsPages() {
							require.Equal(t, max(head, 1), int(room.Head), what)
						}
						require.GreaterOrEqual(t, int(room.Block), most, what)
						require.LessOrEqual(t, int(room.Block), (p.SeqKV+block-1)/block, what)

						p.Varlen = Varlen{On: true, TotalQ: 1000, TotalKV: 1000}
						room = newPageRoom(&p, block)
						left := newFeatureSpec(&p).WindowLeft
						for seqQ := range p.SeqQ + 1 {
							for seqKV := range p.SeqKV + 1 {
								head, most := pagesSeen(&p, seqQ, seqKV, block)
								if left { // blocks lie Block pages apart
									head = (seqQ + block - 1) / block * int(room.Block)
								}
								require.GreaterOrEqual(t, int(room.Head), head, "%s, sequence %dx%d", what, seqQ, seqKV)
								require.GreaterOrEqual(t, int(room.Block), most, "%s, sequence %dx%d", what, seqQ, seqKV)
							}
						}
					}
				}
			}
		}
	}
}
