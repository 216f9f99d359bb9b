package attention_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

type (
	bwdConfig = attention.BackwardConfig
	bwdTile   = attention.BackwardTile
)

// fusedConfigs compute all gradients in one kernel, of up to a block of keys: subgroups that divide dQ
// of a tile evenly and not. N is the matrices' size.
func fusedConfigs(n int) []bwdConfig {
	return []bwdConfig{
		{Impl: attention.CoopMat2, Fused: bwdTile{Subgroups: 4, RowTiles: 1, BlockN: n, Prefetch: true, PeelMask: true}},
		{Impl: attention.CoopMat2, Fused: bwdTile{Subgroups: 3, RowTiles: 1, BlockN: n, PeelMask: true, LoadAhead: 1}},
		{Impl: attention.CoopMat2, Fused: bwdTile{Subgroups: (72 + n - 1) / n, RowTiles: 1, BlockN: 2 * n}},
		{Impl: attention.CoopMat2, Fused: bwdTile{Subgroups: 2, RowTiles: 2, BlockN: n, Detour: true}},
		{Impl: attention.CoopMat, Fused: bwdTile{Subgroups: 4, RowTiles: 1, BlockN: n}},
		{Impl: attention.CoopMat, Fused: bwdTile{Subgroups: 3, RowTiles: 1, BlockN: n, Detour: true}},
	}
}

// storedConfigs pass P and dX through memory: of one head at a time, two and all; matrices stored as
// they are and eight keys of an invocation together; tiles of keys that are a block, and a part of
// one; subgroups of a product over rows, and over columns, too.
func storedConfigs(d *vk.Device) []bwdConfig {
	n := matrixSize(d)
	group := 8 * n // a multiple of the keys that are stored together
	if !software(d) {
		group = 32
	}
	return []bwdConfig{
		{Impl: attention.CoopMat2, Chunk: 1, DQ: bwdTile{Subgroups: 2, RowTiles: 1, BlockN: n, Prefetch: true, PeelMask: true}, Stored: bwdTile{Subgroups: 2, RowTiles: 1, BlockN: n}},
		{Impl: attention.CoopMat2, DQ: bwdTile{Subgroups: group / n, RowTiles: 1, BlockN: group, PeelMask: !software(d)}, Stored: bwdTile{Subgroups: group / n, RowTiles: 2, BlockN: n}},
		{Impl: attention.CoopMat2, Chunk: 2, DQ: bwdTile{Subgroups: 2, RowTiles: 2, BlockN: n}, Stored: bwdTile{Subgroups: 4, RowTiles: 2, BlockN: 2 * n, LoadAhead: 1}},
		{Impl: attention.CoopMat, DQ: bwdTile{Subgroups: 2, RowTiles: 1, BlockN: 2 * n, Detour: true}, Stored: bwdTile{Subgroups: 2, RowTiles: 2, BlockN: 2 * n}},
	}
}

// f32x2Configs are tiles for float32 on matrices, the last with a detour on coopmat.
func f32x2Configs(d *vk.Device) []bwdConfig {
	n := matrixSize(d)
	rows, keys, both := heavy(d)
	return []bwdConfig{
		{
			Impl: attention.CoopMat2,
			DKV:  bwdTile{Subgroups: 4, RowTiles: 1, BlockN: keys, Prefetch: true, PeelMask: both, LoadAhead: 2},
			DQ:   bwdTile{Subgroups: 2, RowTiles: rows, BlockN: n, Prefetch: true, PeelMask: true},
		},
		{
			Impl: attention.CoopMat2,
			DKV:  bwdTile{Subgroups: 2, RowTiles: 2, BlockN: n, Detour: true},
			DQ:   bwdTile{Subgroups: 4, RowTiles: 1, BlockN: n, Detour: true},
		},
		{
			Impl: attention.CoopMat,
			DKV:  bwdTile{Subgroups: 2, RowTiles: 1, BlockN: n, Detour: true, PeelMask: !both},
			DQ:   bwdTile{Subgroups: 2, RowTiles: 2, BlockN: n, PeelMask: both, Detour: true},
		},
	}
}

// TestBackwardConfigs runs drawn calls on tiles that the tuning table does not take: not square, one and
// several tiles of an invocation or a subgroup, rows that wait in registers, one loop and two, matrix
// layouts that are not known, of one word of dropout's bits and several.
func TestBackwardConfigs(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	n := matrixSize(d)
	rows, keys, both := heavy(d)
	const m2, m1, scalar = attention.CoopMat2, attention.CoopMat, attention.Scalar
	wide := 32 * rows // columns of a block of the scalar path
	list := []bwdConfig{
		{
			Impl: scalar,
			DKV:  bwdTile{Threads: 64, ThreadsX: 8, BlockM: 8, BlockN: 16, Depth: 8, StageRows: 4},
			DQ:   bwdTile{Threads: 32, ThreadsX: 4, BlockM: 24, BlockN: 4, Depth: 16, StageRows: 4},
		},
		{ // all weights are read by the last product before the next ones are written
			Impl: scalar,
			DKV:  bwdTile{Threads: 128, ThreadsX: 16, BlockM: 16, BlockN: wide, Depth: 16, StageRows: wide},
			DQ:   bwdTile{Threads: 64, ThreadsX: 16, BlockM: 8, BlockN: wide, Depth: wide / 2, StageRows: wide / 2},
		},
		{
			Impl: scalar,
			DKV:  bwdTile{Threads: 128, ThreadsX: 16, BlockM: 48, BlockN: 16, Depth: 16, StageRows: 16},
			DQ:   bwdTile{Threads: 64, ThreadsX: 16, BlockM: 8, BlockN: wide, Depth: wide / 2, StageRows: wide / 2},
		},
		{
			Impl: m2,
			DKV:  bwdTile{Subgroups: 4, RowTiles: 1, BlockN: keys, Prefetch: true, PeelMask: both},
			DQ:   bwdTile{Subgroups: 2, RowTiles: rows, BlockN: n, Prefetch: true, PeelMask: true},
		},
		{Impl: m2, DKV: bwdTile{Subgroups: 2, RowTiles: 2, BlockN: n, Detour: true}, DQ: bwdTile{Subgroups: 4, RowTiles: 1, BlockN: n, Detour: true, Prefetch: true}},
		{Impl: m2, DKV: bwdTile{Subgroups: 4, RowTiles: rows, BlockN: n, Prefetch: true}, DQ: bwdTile{Subgroups: 4, RowTiles: 1, BlockN: n, Prefetch: true}},
		{
			Impl: m1,
			DKV:  bwdTile{Subgroups: 2, RowTiles: rows, BlockN: n, PeelMask: true, Detour: true},
			DQ:   bwdTile{Subgroups: 2, RowTiles: 2, BlockN: n, PeelMask: both, Detour: true},
		},
	}
	for i, c := range slices.Concat(list, f32x2Configs(d), fusedConfigs(n), storedConfigs(d)) {
		wide := i >= len(list) && i < len(list)+3 // of float32
		t.Run(c.String(), func(t *testing.T) {
			vktest.Require(t, c.Impl.String(), pathError(d.Caps(), c.Impl))
			drawn(t, d, kit.Backward, c.Impl, 2, i, func(a *call.Attention) {
				config := c
				switch a.BackwardConfig = &config; {
				case c.Fused != bwdTile{}:
					a.SeqKV = min(a.SeqKV, 3*n)
				case wide != (a.DType == dtype.Float32) && c.Impl != scalar:
					a.HeadDim = 0 // which no device takes
				}
			})
		})
	}
}

// TestBackwardStoredWorkspace says how many bytes weights take: the weights of all heads, or of as
// many heads as the caller says or has memory for, beside the sums of the other heads. Keys that a
// causal mask hides take no bytes except at the ends of blocks.
func TestBackwardStoredWorkspace(t *testing.T) {
	d := vktest.Open(t)
	vktest.Require(t, "coopmat2", pathError(d.Caps(), attention.CoopMat2))
	n := matrixSize(d)
	config := attention.BackwardConfig{
		Impl:   attention.CoopMat2,
		DQ:     attention.BackwardTile{Subgroups: 16 / n, RowTiles: 1, BlockN: n}, // blocks of 16
		Stored: attention.BackwardTile{Subgroups: 16 / n, RowTiles: 1, BlockN: n},
	}
	good := attention.Problem{Batch: 2, NumHeads: 6, NumKVHeads: 3, SeqQ: 40, SeqKV: 70, HeadDim: 16, DType: dtype.Float16}
	const rows = (8*2*6*40 + 255) / 256 * 256
	const page = 2 * 2 * 16 * 16
	const sums = 2 * 4 * 80 * 16 // of a key head
	for _, c := range []struct {
		causal bool
		align  attention.Align
		window attention.Window
		bias   attention.Bias
		chunk  int
		room   int64 // of the caller's workspace
		want   int64
	}{
		{want: rows + 12*3*5*page},
		{causal: true, want: rows + 12*(3+4+5)*page}, // row 0 sees keys 0 to 30: shift 30
		{causal: true, align: attention.TopLeft, want: rows + 12*(1+2+3)*page},
		{window: attention.Window{On: true, Left: attention.Unlimited, Right: 17}, align: attention.TopLeft, want: rows + 12*(3+4+5)*page}, // as shift 17
		{window: attention.Window{On: true, Left: 16}, want: rows + 12*3*3*page},                                                           // three pages of each block of rows
		{chunk: 1, want: rows + 15*page + sums},
		{chunk: 4, want: rows + 3*(15*page+sums)}, // one of two members of 6 key heads in two chunks, of the same size
		{chunk: 6, want: rows + 6*(15*page+sums)},
		{room: rows + 12*15*page, want: rows + 12*15*page},
		{room: rows + 12*15*page - 1, want: rows + 6*(15*page+sums)},
		{room: rows + 2*15*page, want: rows + 15*page + sums},
		{bias: attention.Bias{On: true, Rows: true}, want: rows + 12*15*page},
		{bias: attention.Bias{On: true, Rows: true}, chunk: 1, want: rows + 15*page + sums + 4*40*70}, // dBias so far
		{bias: attention.Bias{On: true, Rows: true}, room: rows + 12*15*page, want: rows + 12*15*page},
		{bias: attention.Bias{On: true, Rows: true}, room: rows + 12*15*page - 1, want: rows + 6*(15*page+sums) + 4*40*70},
		{bias: attention.Bias{On: true, Rows: true, Batch: true, Heads: true}, chunk: 1, want: rows + 15*page + sums},
	} {
		p, config := good, config
		p.Causal, p.CausalAlign, p.Window, p.Bias, config.Chunk = c.causal, c.align, c.window, c.bias, c.chunk
		opt := attention.Options{BackwardConfig: &config}
		if c.room > 0 {
			b, err := d.NewBuffer("workspace", c.room)
			require.NoError(t, err)
			defer b.Close()
			opt.Workspace = b
		}
		bytes, err := attention.Workspace(d.Caps(), p, kit.Backward, opt)
		require.NoError(t, err)
		require.Equal(t, c.want, bytes, c)
	}
}
