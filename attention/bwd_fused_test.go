package attention_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
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

// TestBackwardFusedWorkspace says how many bytes dQ of shares of the keys takes: as many
// shares as fill the device, no more than there are blocks, and none for one block.
func TestBackwardFusedWorkspace(t *testing.T) {
	caps := *vktest.Open(t).Caps()
	vktest.Require(t, "coopmat2", pathError(&caps, attention.CoopMat2))
	good := attention.Problem{Batch: 2, NumHeads: 6, NumKVHeads: 3, SeqQ: 33, HeadDim: 16, DType: dtype.Float16}
	shape, lack := chips.MatrixShape(&caps, good.DType)
	require.Empty(t, lack)
	tile := attention.BackwardTile{Subgroups: 16 / int(shape.M), RowTiles: 1, Stream: 16} // 16 keys
	const rows = 8 * 2 * 6 * 33
	const before = (rows + 255) / 256 * 256
	const share = 4 * 2 * 6 * 48 * 16 // of the padded rows
	for _, c := range []struct {
		units, shares, seqKV int
		want                 int64
	}{
		{132, 0, 16, rows}, // one block
		{132, 0, 17, before + 2*share},
		{132, 0, 160, before + 10*share},
		{6, 0, 160, before + 2*share},
		{7, 0, 160, before + 3*share},  // 14 workgroups for 6 heads
		{24, 0, 160, before + 5*share}, // 8 shares of 10 blocks take as long as 5
		{1, 0, 160, before + share},    // more heads than that
		{0, 0, 160, before + 10*share}, // as for 32 units
		{132, 3, 160, before + 3*share},
		{132, 20, 160, before + 10*share},
	} {
		p, caps := good, caps
		p.SeqKV, caps.ComputeUnits = c.seqKV, uint32(c.units)
		opt := attention.Options{BackwardConfig: &attention.BackwardConfig{Impl: attention.CoopMat2, Fused: tile, Splits: c.shares}}
		bytes, err := attention.Workspace(&caps, p, kit.Backward, opt)
		require.NoError(t, err)
		require.Equal(t, c.want, bytes, c)
	}
}

// TestBackwardFusedUnsupported says why there is no such kernel.
func TestBackwardFusedUnsupported(t *testing.T) {
	caps := *vktest.Open(t).Caps()
	vktest.Require(t, "coopmat2", pathError(&caps, attention.CoopMat2))
	good := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 640, HeadDim: 16, DType: dtype.Float16}
	tile := attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: 16}
	checkRefusals(t, caps, good, attention.BackwardConfig{Impl: attention.CoopMat2, Fused: tile}, []refusal{
		{func(*attention.Problem, *vk.Caps, *attention.BackwardConfig) {}, ""},
		{func(_ *attention.Problem, _ *vk.Caps, c *attention.BackwardConfig) { c.Impl = attention.Scalar }, "scalar: no kernel computes all gradients of float16 at once"},
		{func(p *attention.Problem, _ *vk.Caps, _ *attention.BackwardConfig) { p.DType = dtype.Float32 }, "coopmat2: no kernel computes all gradients of float32 at once"},
		{func(p *attention.Problem, _ *vk.Caps, _ *attention.BackwardConfig) { p.Softcap = 5 }, "coopmat2: no kernel computes all gradients at once with softcap"},
		{func(_ *attention.Problem, _ *vk.Caps, c *attention.BackwardConfig) { c.Splits = -1 }, "coopmat2: splits=-1 is negative"},
		{func(_ *attention.Problem, caps *vk.Caps, _ *attention.BackwardConfig) { caps.MaxStorageBuffers = 7 }, "coopmat2: all gradients at once take 8 storage buffers, more than the device's 7"},
		{func(_ *attention.Problem, caps *vk.Caps, _ *attention.BackwardConfig) {
			caps.MaxPushConstantsBytes = 128
		}, "coopmat2: all gradients at once take 144 bytes of push constants, more than the device's 128"},
		{func(_ *attention.Problem, _ *vk.Caps, c *attention.BackwardConfig) { c.Fused.Subgroups = 0 }, "coopmat2: a tile size of 0x16 t0x0 depth0 rows0 is not positive"},
		{func(_ *attention.Problem, _ *vk.Caps, c *attention.BackwardConfig) { c.Fused.Stream = 20 }, "coopmat2: stream=20 is not a multiple of the matrix size "},
		// Both tiles and their statistics fit, K and dX beside them do not.
		{func(_ *attention.Problem, caps *vk.Caps, c *attention.BackwardConfig) {
			caps.MaxSharedMemoryBytes = 2*16*(2+1)*16 + 16*8
		}, "coopmat2: "},
		{func(_ *attention.Problem, caps *vk.Caps, c *attention.BackwardConfig) {
			c.Splits, caps.MaxStorageBufferRange = 4, 16895
		}, "coopmat2: a workspace of 16896 bytes, dQ of shares of the keys among it, is more than the device's 16895"},
	})
}

// A refusal is a change and what Feasible says then, "" where it takes the configuration.
type refusal struct {
	change func(p *attention.Problem, caps *vk.Caps, config *attention.BackwardConfig)
	want   string
}

func checkRefusals(t *testing.T, caps vk.Caps, p attention.Problem, config attention.BackwardConfig, list []refusal) {
	for _, c := range list {
		p, caps, config := p, caps, config
		c.change(&p, &caps, &config)
		err := config.Feasible(&caps, p)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, "attention: "+c.want)
	}
}
