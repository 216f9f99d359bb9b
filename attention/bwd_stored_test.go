package attention_test

import (
	"strings"
	"testing"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// storedConfigs pass P and dX through memory: one key head at a time and all; matrices stored as
// they are and eight keys of an invocation together; tiles of keys that are a block, and a part of
// one; subgroups of a product over rows, and over columns, too.
func storedConfigs(d *vk.Device) []attention.BackwardConfig {
	n := matrixSize(d)
	group := 8 * n // a multiple of the keys that are stored together
	if !software(d) {
		group = 32
	}
	return []attention.BackwardConfig{
		{Impl: attention.CoopMat2, Chunk: 1, DQ: attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: n, Prefetch: true, SplitLoop: true}, Stored: attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: n}},
		{Impl: attention.CoopMat2, DQ: attention.BackwardTile{Subgroups: group / n, RowTiles: 1, Stream: group, SplitLoop: true}, Stored: attention.BackwardTile{Subgroups: group / n, RowTiles: 2, Stream: n}},
		{Impl: attention.CoopMat2, Chunk: 2, DQ: attention.BackwardTile{Subgroups: 2, RowTiles: 2, Stream: n}, Stored: attention.BackwardTile{Subgroups: 4, RowTiles: 2, Stream: 2 * n, Fence: 1}},
		{Impl: attention.CoopMat, DQ: attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 2 * n, Detour: true}, Stored: attention.BackwardTile{Subgroups: 2, RowTiles: 2, Stream: 2 * n}},
	}
}

// TestBackwardStored runs the suite.
func TestBackwardStored(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	for i, config := range storedConfigs(d) {
		small := backwardSuite(d).Where(func(c *attntest.Case) bool {
			light := i == 0 || strings.HasPrefix(c.Name, "edge/") && c.Problem.Causal
			return c.Problem.HeadDim <= setOf(d).HeadDims().Odd && c.FLOPs() < 4e6 && (light || !software(d))
		})
		t.Run(config.String(), func(t *testing.T) {
			vktest.Require(t, config.Impl.String(), pathError(d.Caps(), config.Impl))
			f := backwardOnDevice{d, attention.Options{BackwardConfig: &config}}
			attntest.TestBackward(t, standIns(d, small, f.Supports), f)
		})
	}
}
