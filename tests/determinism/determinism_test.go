package determinism

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/tests/conformance"
	"github.com/flashvk/flashvk/vk"
)

// keepsState is the kernel whose calls continue from the last one: TestOptimizer.
const keepsState = "optim"

// TestKernels records each call twice, amid other memory, and submits each recording twice, from
// the same memory.
func TestKernels(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers, func(o *vk.Options) { o.PoisonScratch = trial.ScratchWord })
	for x := range conformance.All(d, vktest.Thorough(d)) {
		if x.Kernel.Name == keepsState {
			continue
		}
		t.Run(x.Name, func(t *testing.T) {
			if err := call.Supports(x.Problem, d.Caps()); err != nil {
				t.Skip(err)
			}
			_, err := trial.Examine(context.Background(), d, x.Kernel, x.Problem, true, 10*time.Minute)
			require.NoError(t, err, trial.Encode(x.Kernel, x.Problem))
		})
	}
}

// TestOptimizer says that three submissions of one recorded step give the same bits as three
// recordings.
func TestOptimizer(t *testing.T) {
	ctx, d := context.Background(), vktest.Open(t)
	p := optim.Problem{LR: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, MaxNorm: 0.5}
	train := func(anew bool) (param, copied []byte) {
		rng := rand.New(rand.NewPCG(1, 2))
		tensor := func(format dtype.DType, numbers bool) vk.Tensor {
			data := make([]float32, 300)
			for i := range data {
				if numbers {
					data[i] = float32(rng.NormFloat64())
				}
			}
			return vktest.Values(t, d, format, data, 300)
		}
		x := optim.Tensors{
			Param: tensor(dtype.Float32, true), Grad: tensor(dtype.Float16, true),
			M: tensor(dtype.Float32, false), V: tensor(dtype.Float32, false), Copy: tensor(dtype.Float16, false),
		}
		a, err := optim.New(ctx, d, []optim.Param{{Name: "w", Tensors: x}}, p)
		require.NoError(t, err)
		defer a.Close()
		c, err := d.NewCmd("step")
		require.NoError(t, err)
		defer c.Close()
		for i := range 3 {
			if anew || i == 0 {
				c.Reset()
				require.NoError(t, a.Step(c))
			}
			require.NoError(t, c.Submit(ctx))
		}
		param, copied = make([]byte, 4*300), make([]byte, 2*300)
		require.NoError(t, x.Param.DownloadRaw(ctx, param))
		require.NoError(t, x.Copy.DownloadRaw(ctx, copied))
		return param, copied
	}
	param, copied := train(false)
	again, copiedAgain := train(true)
	require.Equal(t, param, again)
	require.Equal(t, copied, copiedAgain)
}
