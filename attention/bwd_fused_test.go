package attention_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// fusedConfigs compute all gradients in one kernel: one share of the keys, whose blocks
// add up in memory, two, and one for each block; subgroups that divide dQ of a tile evenly
// and not; blocks larger than most sequences, which write dQ themselves.
func fusedConfigs(d *vk.Device) []attention.BackwardConfig {
	n := matrixSize(d)
	return []attention.BackwardConfig{
		{Impl: attention.CoopMat2, Splits: 1, Fused: attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: n, Prefetch: true, PeelMask: true}},
		{Impl: attention.CoopMat2, Splits: 2, Fused: attention.BackwardTile{Subgroups: 3, RowTiles: 1, Stream: n, PeelMask: true, LoadAhead: 1}},
		{Impl: attention.CoopMat2, Fused: attention.BackwardTile{Subgroups: (72 + n - 1) / n, RowTiles: 1, Stream: 2 * n}},
		{Impl: attention.CoopMat2, Splits: 2, Fused: attention.BackwardTile{Subgroups: 1, RowTiles: 2, Stream: n, Detour: true}},
		{Impl: attention.CoopMat, Splits: 2, Fused: attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: n}},
		{Impl: attention.CoopMat, Splits: 3, Fused: attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: n, Detour: true}},
	}
}

// TestBackwardFused runs the suite.
func TestBackwardFused(t *testing.T) {
	d := vktest.Open(t)
	testBackwardConfigs(t, d, fusedConfigs(d))
}

// testBackwardConfigs runs the small cases of the suite on the first configuration, and its edges under
// a causal mask, or on a GPU all of them, on the others.
func testBackwardConfigs(t *testing.T, d *vk.Device, configs []attention.BackwardConfig) {
	for i, config := range configs {
		small := backwardSuite(d).Where(func(c *attntest.Case) bool {
			light := i == 0 || strings.HasPrefix(c.Name, "edge/") && c.Problem.Causal
			return c.Problem.Plain() && c.Problem.HeadDim <= setOf(d).HeadDims().Odd && c.FLOPs() < 4e6 && (light || !software(d))
		})
		t.Run(config.String(), func(t *testing.T) {
			vktest.Require(t, config.Impl.String(), pathError(d.Caps(), config.Impl))
			f := backwardOnDevice{d, attention.Options{BackwardConfig: &config}}
			attntest.TestBackward(t, standIns(d, small, f.Supports), f)
		})
	}
}

// TestBackwardFusedManyBatches runs several dispatches of both kernels.
func TestBackwardFusedManyBatches(t *testing.T) {
	d := vktest.Open(t)
	vktest.Require(t, "coopmat2", pathError(d.Caps(), attention.CoopMat2))
	d.Caps().MaxWorkgroupCount[2] = 1
	small := backwardSuite(d).Where(func(c *attntest.Case) bool {
		few := strings.HasPrefix(c.Name, "heads/") && !c.Problem.Causal // TestBackwardFused has their kernel
		return c.Problem.Batch > 1 && c.Problem.HeadDim <= setOf(d).HeadDims().Odd && c.FLOPs() < 4e6 && (few || vktest.Thorough(d))
	})
	require.NotEmpty(t, small.Cases)
	f := backwardOnDevice{d, attention.Options{BackwardConfig: &fusedConfigs(d)[0]}}
	attntest.TestBackward(t, standIns(d, small, f.Supports), f)
}
