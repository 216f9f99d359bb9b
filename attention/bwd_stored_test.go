package attention_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// storedConfigs pass P and dX through memory: of one head at a time, two and all; matrices stored as
// they are and eight keys of an invocation together; tiles of keys that are a block, and a part of
// one; subgroups of a product over rows, and over columns, too.
func storedConfigs(d *vk.Device) []attention.BackwardConfig {
	n := matrixSize(d)
	group := 8 * n // a multiple of the keys that are stored together
	if !software(d) {
		group = 32
	}
	return []attention.BackwardConfig{
		{Impl: attention.CoopMat2, Chunk: 1, DQ: attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: n, Prefetch: true, PeelMask: true}, Stored: attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: n}},
		{Impl: attention.CoopMat2, DQ: attention.BackwardTile{Subgroups: group / n, RowTiles: 1, Stream: group, PeelMask: !software(d)}, Stored: attention.BackwardTile{Subgroups: group / n, RowTiles: 2, Stream: n}},
		{Impl: attention.CoopMat2, Chunk: 2, DQ: attention.BackwardTile{Subgroups: 2, RowTiles: 2, Stream: n}, Stored: attention.BackwardTile{Subgroups: 4, RowTiles: 2, Stream: 2 * n, LoadAhead: 1}},
		{Impl: attention.CoopMat, DQ: attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 2 * n, Detour: true}, Stored: attention.BackwardTile{Subgroups: 2, RowTiles: 2, Stream: 2 * n}},
	}
}

// TestBackwardStored runs the suite.
func TestBackwardStored(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	testBackwardConfigs(t, d, storedConfigs(d))
}

// TestBackwardStoredFeatures runs the suite's features. Software gets, unless there is time, those that decide which pages
// there are and what becomes of them, on the first configuration; tests/conformance has the other path.
func TestBackwardStoredFeatures(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	paged := []string{"all/packed/", "window/", "varlen/", "pair/varlen-window-", "pair/varlen-key-mask-bias/", "bias/", "dropout/"}
	for i, config := range storedConfigs(d) {
		cases := backwardSuite(d).Where(func(c *attntest.Case) bool {
			chosen := i == 0 && slices.ContainsFunc(paged, func(prefix string) bool { return strings.HasPrefix(c.Name, prefix) })
			return !c.Problem.Plain() && c.FLOPs() < 1e7 && (chosen || vktest.Thorough(d))
		})
		t.Run(config.String(), func(t *testing.T) {
			vktest.Require(t, config.Impl.String(), pathError(d.Caps(), config.Impl))
			if len(cases.Cases) == 0 {
				t.Skip("lavapipe compiles for long")
			}
			f := backwardOnDevice{d, attention.Options{BackwardConfig: &config}}
			attntest.TestBackward(t, standIns(d, cases, f.Supports), f)
		})
	}
}

// TestBackwardStoredWorkspace says how many bytes weights take: those of all heads, or of as many as the
// caller says or has memory for and the sums of the others, and nothing of what a causal mask hides but the ends of blocks.
func TestBackwardStoredWorkspace(t *testing.T) {
	d := vktest.Open(t)
	vktest.Require(t, "coopmat2", pathError(d.Caps(), attention.CoopMat2))
	n := matrixSize(d)
	config := attention.BackwardConfig{
		Impl:   attention.CoopMat2,
		DQ:     attention.BackwardTile{Subgroups: 16 / n, RowTiles: 1, Stream: n}, // blocks of 16
		Stored: attention.BackwardTile{Subgroups: 16 / n, RowTiles: 1, Stream: n},
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
