package attention

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// TestSplitsToFill says what Choose divides on a device of 132 units: few blocks
// with many keys, into two workgroups for each unit at most.
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
	}
}

// TestRowSplits says that a row may forbid splits, and that no row fixes their
// number, which is a problem's.
func TestRowSplits(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 1, SeqKV: 8192, HeadDim: 64, DType: dtype.Float16}
	c := Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 64}
	require.Equal(t, 16, fwdTable.Fit(c, &caps, &p, false).Splits)
	c.Splits = 1
	require.Equal(t, 1, fwdTable.Fit(c, &caps, &p, false).Splits)
	for i := range fwdTable.Rows {
		require.LessOrEqual(t, fwdTable.Rows[i].Config.Splits, 1, "row %d", i)
	}
}

// TestFeasibleSplits has the reason for each number that is refused.
func TestFeasibleSplits(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := Problem{Batch: 2, NumHeads: 8, NumKVHeads: 8, SeqQ: 4, SeqKV: 300, HeadDim: 64, DType: dtype.Float16}
	matrix := Config{Impl: CoopMat2, Subgroups: 4, RowTiles: 1, BlockN: 64}
	scalar := Config{Impl: Scalar, Threads: 128, ThreadsX: 16, BlockM: 32, BlockN: 32, Depth: 32, ValueRows: 8}
	unfused := Config{Impl: Unfused, Threads: 64, ThreadsX: 8, BlockM: 32, BlockN: 16, Depth: 32}
	for _, c := range []struct {
		config Config
		splits int
		dtype  dtype.DType
		limit  uint64 // bytes of a buffer
		want   string // "" if feasible
	}{
		{matrix, 5, dtype.Float16, 5 << 14, ""},
		{matrix, 6, dtype.Float16, 1 << 20, "coopmat2: splits=6 are more than the 5 tiles of seq_kv=300"},
		{matrix, 5, dtype.Float16, 5<<14 - 1, "coopmat2: partial results of splits=5 take 81920 bytes, more than the device's 81919"},
		{matrix, -1, dtype.Float16, 1 << 20, "coopmat2: splits=-1 is negative"},
		{scalar, 10, dtype.Float32, 1 << 20, ""},
		{unfused, 2, dtype.Float16, 1 << 20, "unfused: splits=2, but no kernel divides keys of such a problem"},
		{unfused, 1, dtype.Float16, 1 << 20, ""},
	} {
		p.DType, caps.MaxStorageBufferRange, c.config.Splits = c.dtype, c.limit, c.splits
		err := c.config.Feasible(&caps, p)
		if c.want == "" {
			require.NoError(t, err, c.config)
			continue
		}
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.EqualError(t, err, "attention: "+c.want+": unsupported on this device")
	}
}

// TestCombineSpec says that the rows and teams of a workgroup fit it, whatever
// the device allows, and that some splits are always taken at once.
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

// TestPacks says whose heads are rows of one matrix, and how they lie then.
func TestPacks(t *testing.T) {
	decode := Problem{Batch: 3, NumHeads: 12, NumKVHeads: 4, SeqQ: 1, SeqKV: 100, HeadDim: 64, DType: dtype.Float16, Causal: true}
	for _, c := range []struct {
		name   string
		change func(*Problem)
		want   bool
	}{
		{"groups of three", func(p *Problem) {}, true},
		{"no mask", func(p *Problem) { p.Causal = false }, true},
		{"two queries", func(p *Problem) { p.SeqQ = 2 }, false},
		{"no groups", func(p *Problem) { p.NumKVHeads = 12 }, false},
		{"sees one key", func(p *Problem) { p.CausalAlign = TopLeft }, false},
		{"a window", func(p *Problem) { p.Window = Window{On: true, Left: 5} }, false},
	} {
		p := decode
		c.change(&p)
		require.Equal(t, c.want, packs(&p), c.name)
	}
	p := packProblem(decode)
	require.NoError(t, p.Validate())
	require.Equal(t, [4]int{4, 4, 3, 100}, [4]int{p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV})
	require.Equal(t, decode.FLOPs(), p.FLOPs())
	q := vk.View(&vk.Buffer{}, dtype.Float16, 3, 12, 1, 64)
	packed := packHeads(q, &decode)
	require.Equal(t, []int{3, 4, 3, 64}, packed.Shape)
	require.Equal(t, []int{12 * 64, 3 * 64, 64, 1}, packed.Strides)
	require.Equal(t, []int{3, 12, 1, 64}, q.Shape) // the caller's is as it was
	require.True(t, packHeads(vk.Tensor{}, &decode).IsZero())
}
