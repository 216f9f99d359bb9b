package attention_test

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestTraining fits Q, K and V to what attention makes of others, by gradient
// descent with momentum through Forward and Backward. The loss, the mean square of
// O - target, must fall below 1 % of what it was; where only V learns, or only Q and K, it
// does not.
func TestTraining(t *testing.T) {
	p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 20, SeqKV: 24, HeadDim: 8, Causal: true}
	for _, impl := range attention.Impls() {
		for _, p.DType = range dtype.All() {
			t.Run(impl.String()+"/"+p.DType.String(), func(t *testing.T) {
				d := vktest.Open(t)
				if attention.Supports(d.Caps(), p, kit.Forward, attention.Options{Impl: impl}) != nil || attention.Supports(d.Caps(), p, kit.Backward, attention.Options{Impl: impl}) != nil {
					t.Skip("no kernels")
				}
				first, last := train(t, d, p, impl, true, true)
				t.Logf("loss %.3g, then %.3g", first, last)
				require.Less(t, last, first*trainedLoss)
			})
		}
	}
	p.DType = dtype.Float32
	for _, c := range [][2]bool{{false, true}, {true, false}} {
		d := vktest.Open(t)
		first, last := train(t, d, p, attention.Scalar, c[0], c[1])
		t.Logf("scores learn %v, values %v: loss %.3g, then %.3g", c[0], c[1], first, last)
		require.Greater(t, last, first*trainedLoss)
	}
}

// trainedLoss is the share of the loss that may be left; half of it is.
const trainedLoss = 0.01

// train runs 150 steps and returns the loss before the first and after the last.
// Scores says whether Q and K learn, values whether V does.
func train(t *testing.T, d *vk.Device, p attention.Problem, impl attention.Impl, scores, values bool) (first, last float64) {
	ctx, x := context.Background(), newBackwardArgs(t, d, p)
	x.opt.Impl = impl
	rng := rand.New(rand.NewPCG(3, 3))
	normal := func(n int) []float32 {
		y := make([]float32, n)
		for i := range y {
			y[i] = float32(rng.NormFloat64())
		}
		return y
	}
	target := make([]float64, x.o.NumElements())
	teacher := ref.Inputs[float32]{Q: normal(x.q.NumElements()), K: normal(x.k.NumElements()), V: normal(x.v.NumElements())}
	require.NoError(t, ref.Forward(target, nil, teacher, p))

	type parameter struct {
		value, gradient vk.Tensor
		data, momentum  []float32
		learns          bool
	}
	parameters := []parameter{{x.q, x.dq, nil, nil, scores}, {x.k, x.dk, nil, nil, scores}, {x.v, x.dv, nil, nil, values}}
	for i := range parameters {
		y := &parameters[i]
		y.data, y.momentum = normal(y.value.NumElements()), make([]float32, y.value.NumElements())
	}
	forward, err := d.NewCmd("forward")
	require.NoError(t, err)
	defer forward.Close()
	backward, err := d.NewCmd("backward")
	require.NoError(t, err)
	defer backward.Close()
	require.NoError(t, attention.Forward(forward, x.tensors(), p, x.opt))
	require.NoError(t, x.record(backward))
	o := make([]float32, len(target))
	const steps, rate, momentum = 150, 0.6, 0.9
	for step := range steps + 1 {
		for _, y := range parameters {
			require.NoError(t, y.value.Upload(ctx, y.data))
		}
		require.NoError(t, forward.Submit(ctx))
		require.NoError(t, x.o.Download(ctx, o))
		last = 0
		do := make([]float32, len(o)) // of half the sum of squares of each row
		for i := range o {
			do[i] = o[i] - float32(target[i])
			last += float64(do[i]) * float64(do[i]) / float64(len(o))
		}
		if step == 0 {
			first = last
		}
		require.NoError(t, x.do.Upload(ctx, do))
		require.NoError(t, backward.Submit(ctx))
		for _, y := range parameters {
			g := make([]float32, len(y.data))
			require.NoError(t, y.gradient.Download(ctx, g))
			for i := range g {
				y.momentum[i] = momentum*y.momentum[i] + g[i]
				if y.learns {
					y.data[i] -= rate * (1 - momentum) * y.momentum[i]
				}
			}
		}
	}
	return first, last
}
