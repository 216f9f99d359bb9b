package tnp_test

import (
	"context"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/train"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// must returns x, or panics with the error.
func must[T any](x T, err error) T {
	vktest.Must(err)
	return x
}

// weights downloads the parameters.
func weights(m *train.Model) tnp.Weights { return must(m.Weights(context.Background())) }

// TestOtherFile: a state of other sizes, or weights alone, are refused before anything changes.
func TestOtherFile(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	p := must(tnp.PresetOf("tiny"))
	path, alone := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "weights")
	o := train.Options{Pass: train.Train, Optim: optim.Default()}
	a := newTrial(p.Config, p.Shape, 1).model(t, d, o)
	require.NoError(t, a.SaveState(ctx, path, nil))
	require.NoError(t, tnp.Save(alone, weights(a), p.Config))
	require.EqualError(t, a.LoadState(ctx, opened(t, alone)), `train: metadata steps="" is not a number of steps`)
	wide, many := p.Config, p.Config
	wide.DFF, many.Heads, many.HeadDim = 8, 4, 8
	for want, c := range map[string]tnp.Config{
		`train: tensor "blocks.0.up.weight" has shape [64 32], want [8 32]`: wide, `train: metadata heads="2" is not "4"`: many,
	} {
		b := newTrial(c, p.Shape, 1).model(t, d, o)
		before := weights(b)
		require.EqualError(t, b.LoadState(ctx, opened(t, path)), want)
		require.Equal(t, before, weights(b))
	}
}

// TestOptimizer wants a step to do what AdamW does with the gradients of a plan of pass
// Gradients, whatever the loss scale.
func TestOptimizer(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	x := trials(d)[0]
	for _, scale := range []float64{1, 1024} {
		o := train.Options{Pass: train.Train, Optim: optim.Default(), LossScale: scale}
		o.Optim.LR, o.Optim.Eps, o.Optim.MaxNorm, o.Optim.WeightDecay = 0.01, 1e-3, 0.1, 0.1
		model := x.model(t, d, o)
		x.plan(t, model, train.Gradients, tnp.PlanOptions{})
		grads := must(model.Gradients(ctx))
		x.plan(t, model, train.Train, tnp.PlanOptions{})
		norm := 0.0
		for _, g := range grads {
			for _, v := range g {
				norm += float64(v) * float64(v)
			}
		}
		norm = math.Sqrt(norm)
		require.Greater(t, norm, 0.1, "gradients are not clipped")
		after := weights(model)
		for _, param := range x.c.Params(dtype.Float32) {
			decay := 0.1
			if len(param.Shape) == 1 {
				decay = 0
			}
			for i, g := range grads[param.Name] {
				clipped := float64(g) * 0.1 / norm // the first step: m and v corrected are g and g²
				before := float64(x.w[param.Name][i])
				want := before*(1-0.01*decay) - 0.01*clipped/(math.Abs(clipped)+1e-3)
				require.InDelta(t, want, after[param.Name][i], 2e-6, "scale %g, %s[%d]", scale, param.Name, i)
			}
		}
	}
}
