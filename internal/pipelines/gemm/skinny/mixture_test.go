package skinny_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	gmmref "github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
)

// mixtures returns the outputs of two products, (batch, m, 3), as gmm has them.
func mixtures(out, y []float64, p engine.Problem) gmmref.Inputs {
	in := gmmref.Inputs{Y: y}
	for row := range p.M {
		for k := range p.Batches() {
			at := (k*p.M + row) * 3
			in.Logit, in.Mu, in.LogSigma = append(in.Logit, out[at]), append(in.Mu, out[at+1]), append(in.LogSigma, out[at+2])
		}
	}
	return in
}

// TestMixture compares what gmm.Merge makes of the states with products in float64: with
// the tuning table's tiles, with tiles whose rows leave in several strips, with subgroups
// side by side, several blocks of columns, and heads in groups of different sizes.
func TestMixture(t *testing.T) {
	d := vktest.Open(t)
	each(t, d, []sizedCase{
		{engine.Problem{M: 1, N: 1, K: 1}, 1, nil},
		{engine.Problem{Batch: 3, M: 37, N: 45, K: 19, Alpha: 0.5}, 2, nil},
		{engine.Problem{Batch: 5, M: 37, N: 150, K: 9}, 1, strips},
		{engine.Problem{Batch: 7, M: 21, N: 50, K: 9}, 3, wide},
		{engine.Problem{Batch: 2, M: 20, N: 70, K: 40, TransA: true, TransB: true}, 2, strips},
	}, func(i int, p engine.Problem, groups int, o engine.Options) {
		p.Out, p.Activation = dtype.Float32, engine.SiLU
		layout := guard.Layout(i) % guard.Layouts
		t.Run(fmt.Sprintf("%v/%d", p, groups), func(t *testing.T) {
			h := newHiddenCase(p, 3)
			y := h.random(p.M)
			single := gmm.Problem{Tokens: p.M, Components: p.Batches()}
			exact := mixtures(h.outputs(ref.Multiply).C, y, p)
			logP, loss := gmmref.Forward(exact, single)
			plain, plainLoss := gmmref.PlainForward(mixtures(h.outputs(ref.Plain).C, y, p), single)
			c := guard.Case{Name: "mixture", Layout: layout, Tensors: append(h.tensors,
				guard.Tensor{Name: "y", Shape: []int{p.M}, Values: y},
				// Matrix units may truncate sums: four times what float32 may be off by.
				guard.Tensor{Name: "log_p", Shape: []int{p.M}, Want: logP, Bound: 4 * gmmref.ForwardBounds(exact, logP, plain, loss, plainLoss).LogP})}
			c.Test(t, d, func(c *vk.Cmd, t map[string]vk.Tensor) error {
				states := vk.View(c.Scratch("states", int64(4*groups*p.M*gmm.StateSize)), dtype.Float32, groups, p.M, gmm.StateSize)
				if err := skinny.Mixture(c, skinny.MixtureTensors{A: t["a"], B: t["b"], W: t["w"], Y: t["y"], States: states}, p, o); err != nil {
					return err
				}
				return gmm.Merge(c, states, gmm.Tensors{LogP: t["log_p"]}, single, gmm.Options{})
			})
		})
	})
}

// TestMixtureErrors wants errors that say what Mixture does not do.
func TestMixtureErrors(t *testing.T) {
	d := vktest.Open(t)
	p := engine.Problem{Batch: 2, M: 2, N: 3, K: 4, Activation: engine.SiLU, DType: dtype.Float16, Out: dtype.Float32}
	_, err := skinny.ChooseMixture(d.Caps(), p, engine.Options{Impl: engine.Scalar})
	require.ErrorIs(t, err, vk.ErrUnsupported)
	p.Activation = engine.Identity
	_, err = skinny.ChooseMixture(d.Caps(), p, engine.Options{Impl: engine.CoopMat})
	require.ErrorContains(t, err, "has another epilogue than silu")
	p.Activation = engine.SiLU
	if _, err = skinny.ChooseMixture(d.Caps(), p, engine.Options{Impl: engine.CoopMat}); err != nil {
		t.Skip(err)
	}
	tensor := func(format dtype.DType, shape ...int) vk.Tensor { return vktest.Tensor(t, d, format, shape...) }
	c, err := d.NewCmd("errors")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	a, b, w := tensor(dtype.Float16, 2, 2, 4), tensor(dtype.Float16, 2, 4, 3), tensor(dtype.Float16, 2, 3, 3)
	y, states := tensor(dtype.Float32, 2), tensor(dtype.Float32, 2, 2, gmm.StateSize)
	require.NoError(t, skinny.Mixture(c, skinny.MixtureTensors{A: a, B: b, W: w, Y: y, States: states}, p, engine.Options{Impl: engine.CoopMat}))
	require.EqualError(t, skinny.Mixture(c, skinny.MixtureTensors{A: a, B: b, W: w, Y: y, States: y}, p, engine.Options{Impl: engine.CoopMat}), "gemm: states has shape [2], want [groups 2 8] with groups from 1 to 2")
	require.EqualError(t, skinny.Mixture(c, skinny.MixtureTensors{A: a, B: b, W: w, Y: y, States: tensor(dtype.Float32, 3, 2, 8)}, p, engine.Options{Impl: engine.CoopMat}), "gemm: states has shape [3 2 8], want [groups 2 8] with groups from 1 to 2")
	require.ErrorContains(t, skinny.Mixture(c, skinny.MixtureTensors{A: a, B: b, W: a, Y: y, States: states}, p, engine.Options{Impl: engine.CoopMat}), "gemm: w has shape [2 2 4]")
	odd := states
	odd.Shape, odd.Offset = []int{1, 2, 8}, 2
	require.EqualError(t, skinny.Mixture(c, skinny.MixtureTensors{A: a, B: b, W: w, Y: y, States: odd}, p, engine.Options{Impl: engine.CoopMat}), "gemm: states has offset 2 and strides [16 8 1]: not multiples of 4 elements")
	p.Out = dtype.Float16
	require.EqualError(t, skinny.Mixture(c, skinny.MixtureTensors{A: a, B: b, W: w, Y: y, States: states}, p, engine.Options{Impl: engine.CoopMat}), "gemm: out=float16 of Mixture is not float32")
}
