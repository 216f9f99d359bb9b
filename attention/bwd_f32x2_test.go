package attention_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// f32x2Configs are tiles for float32 on matrices, the last with a detour on coopmat.
func f32x2Configs(d *vk.Device) []attention.BackwardConfig {
	n := matrixSize(d)
	rows, both := heavy(d)
	return []attention.BackwardConfig{
		{
			Impl: attention.CoopMat2,
			DKV:  attention.BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 16, Prefetch: true, PeelMask: both, LoadAhead: 2},
			DQ:   attention.BackwardTile{Subgroups: 2, RowTiles: rows, Stream: n, Prefetch: true, PeelMask: true},
		},
		{
			Impl: attention.CoopMat2,
			DKV:  attention.BackwardTile{Subgroups: 2, RowTiles: 2, Stream: n, Detour: true},
			DQ:   attention.BackwardTile{Subgroups: 4, RowTiles: 1, Stream: n, Detour: true},
		},
		{
			Impl: attention.CoopMat,
			DKV:  attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: n, Detour: true, PeelMask: !both},
			DQ:   attention.BackwardTile{Subgroups: 2, RowTiles: 2, Stream: n, PeelMask: both, Detour: true},
		},
	}
}

// TestBackwardF32x2Configs is TestBackwardConfigs for float32 on matrices.
func TestBackwardF32x2Configs(t *testing.T) {
	d := vktest.Open(t)
	most := 24
	if software(d) {
		most = 8
	}
	small := backwardSuite(d).Where(func(c *attntest.Case) bool {
		// TestBackward has dense ones there; each is compiled for up to 10 s with these tiles.
		light := c.Problem.Causal || vktest.Thorough(d)
		return c.Problem.HeadDim <= most && c.Problem.DType == dtype.Float32 && c.Problem.Plain() && light
	})
	require.NotEmpty(t, small.Cases)
	for _, config := range f32x2Configs(d) {
		t.Run(config.String(), func(t *testing.T) {
			vktest.Require(t, config.Impl.String(), pathError(d.Caps(), config.Impl))
			f := backwardOnDevice{d, attention.Options{BackwardConfig: &config}}
			attntest.TestBackward(t, standIns(d, small, f.Supports), f)
		})
	}
}

// TestBackwardScales multiplies inputs by powers of two. That makes no float32 round
// differently, so the gradients must be the same but for another power of two, bit
// by bit: whatever has an exponent of its own in a kernel, and what has none.
//
// lavapipe keeps float32 where a matrix of float16 comes from one of float32; the Detour,
// through shared memory, rounds there, too. TestBackwardF32x2Configs has its kernels, causal,
// and TestBackward those of the others, dense.
func TestBackwardScales(t *testing.T) {
	d := vktest.Open(t)
	p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 40, SeqKV: 33, HeadDim: 8, DType: dtype.Float32}
	detour := f32x2Configs(d)[2]
	options := []attention.Options{{BackwardConfig: &detour}}
	for _, impl := range attention.Impls() {
		options = append(options, attention.Options{Impl: impl})
	}
	for _, opt := range options {
		impl := opt.Impl
		if opt.BackwardConfig != nil {
			impl = opt.BackwardConfig.Impl
		}
		p.Causal = opt.BackwardConfig != nil
		plan, err := attention.Choose(d.Caps(), p, kit.Backward, opt)
		t.Run(impl.String()+" "+plan.String(), func(t *testing.T) {
			vktest.Require(t, impl.String(), pathError(d.Caps(), impl))
			require.NoError(t, err)
			x := newBackwardArgs(t, d, p)
			x.opt = opt
			dq, dk, dv := x.gradients(t, d, 1, 1, 1)
			require.Greater(t, norm(dq), 1.0)
			for _, s := range []struct{ do, v, k float32 }{{0x1p-30, 1, 1}, {0x1p40, 1, 1}, {1, 0x1p-30, 1}, {1, 0x1p40, 1}, {1, 1, 0x1p-20}, {1, 1, 0x1p20}, {0x1p-20, 0x1p-20, 0x1p20}} {
				dq2, dk2, dv2 := x.gradients(t, d, s.do, s.v, s.k)
				require.Equal(t, times(dq, s.do*s.v*s.k), dq2, "dq, %v", s)
				require.Equal(t, times(dk, s.do*s.v/s.k), dk2, "dk, %v", s)
				require.Equal(t, times(dv, s.do), dv2, "dv, %v", s)
			}
		})
	}
}

// gradients returns those for dO and V multiplied by powers of two, and so O; and for K
// multiplied and Q divided by one.
func (x *backwardArgs) gradients(t *testing.T, d *vk.Device, do, v, k float32) (dq, dk, dv []float32) {
	ctx := context.Background()
	c, err := d.NewCmd("scales")
	require.NoError(t, err)
	defer c.Close()
	for _, y := range []struct {
		t     vk.Tensor
		seed  int
		scale float32
	}{{x.q, 0, 1 / k}, {x.k, 1, k}, {x.v, 2, v}, {x.do, 3, do}} {
		data := normal(y.t)
		data = append(data[y.seed:], data[:y.seed]...) // V is not K
		require.NoError(t, y.t.Upload(ctx, times(data, y.scale)))
	}
	opt := attention.Options{Impl: attention.Scalar}
	require.NoError(t, attention.Forward(c, x.tensors(), x.p, opt))
	require.NoError(t, x.record(c))
	require.NoError(t, c.Submit(ctx))
	download := func(y vk.Tensor) []float32 {
		data := make([]float32, y.NumElements())
		require.NoError(t, y.Download(ctx, data))
		return data
	}
	return download(x.dq), download(x.dk), download(x.dv)
}

func times(x []float32, scale float32) []float32 {
	y := make([]float32, len(x))
	for i := range x {
		y[i] = x[i] * scale
	}
	return y
}

func norm(x []float32) (sum float64) {
	for _, e := range x {
		sum += float64(e) * float64(e)
	}
	return sum
}
