package engine_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestPadB wants a corner of op(B) to give the bits that op(B) with its zeros gives, and errors
// where it is too large, or the configuration has no fragments.
func TestPadB(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	formats(t, d, engine.CoopMat, func(t *testing.T, format dtype.DType) {
		if format == dtype.Float32 {
			return
		}
		config, err := engine.ParseConfig(fmt.Sprintf("coopmat s2x2 t1x2 k%d packb g3", 4*side(d)))
		require.NoError(t, err)
		p := engine.Problem{M: 37, N: 72, K: 136, Activation: engine.SiLU, DType: format, Out: format}
		const rows, cols = 117, 45 // of the corner
		a := random(t, d, p.M, p.K, format)
		multiply := func(b vk.Tensor, opt engine.Options) ([]float32, error) {
			dst := vktest.Tensor(t, d, format, p.M, p.N)
			c, err := d.NewCmd("pad b")
			require.NoError(t, err)
			defer c.Close()
			if err := engine.Multiply(c, engine.Tensors{A: a, B: b, C: dst}, p, opt); err != nil {
				return nil, err
			}
			require.NoError(t, c.Submit(ctx))
			got := make([]float32, p.M*p.N)
			return got, dst.Download(ctx, got)
		}
		for _, p.TransB = range []bool{false, true} {
			shape, whole := []int{rows, cols}, []int{p.K, p.N}
			if p.TransB {
				shape, whole = []int{cols, rows}, []int{p.N, p.K}
			}
			corner := random(t, d, shape[0], shape[1], format)
			values := make([]float32, rows*cols)
			require.NoError(t, corner.Download(ctx, values))
			padded := make([]float32, whole[0]*whole[1])
			for i := range shape[0] {
				copy(padded[i*whole[1]:], values[i*shape[1]:][:shape[1]])
			}
			b := vktest.Tensor(t, d, format, whole...)
			require.NoError(t, b.Upload(ctx, padded))
			want, err := multiply(b, engine.Options{Config: &config})
			require.NoError(t, err)
			got, err := multiply(corner, engine.Options{Config: &config, PadB: true})
			require.NoError(t, err)
			require.Equal(t, want, got)
			for i := range p.M {
				require.Equal(t, make([]float32, p.N-cols), got[i*p.N+cols:(i+1)*p.N])
			}

			_, err = multiply(corner, engine.Options{Config: &config})
			require.ErrorContains(t, err, "b has shape")
			_, err = multiply(random(t, d, whole[0], whole[1]+1, format), engine.Options{Config: &config, PadB: true})
			require.ErrorContains(t, err, "b has shape")
			plain := config
			plain.PackB = false
			_, err = multiply(corner, engine.Options{Config: &plain, PadB: true})
			require.ErrorIs(t, err, vk.ErrUnsupported)
		}
	})
}
