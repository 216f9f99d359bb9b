package tnp_test

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/tnp/gp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// A training has a model, a plan of its step, and data.
type training struct {
	t     testing.TB
	model *tnp.Model
	plan  *tnp.Plan
	p     tnp.Preset
}

func newTraining(t testing.TB, d *vk.Device, p tnp.Preset, format dtype.DType, seed uint64) *training {
	o := train.Options{DType: format, Optim: optim.Default(), LossScale: tnp.DefaultLossScale(format, p.Shape)}
	o.Optim.MaxNorm = 1
	return trainingOf(t, d, p, o, seed)
}

func trainingOf(t testing.TB, d *vk.Device, p tnp.Preset, o train.Options, seed uint64) *training {
	ctx := context.Background()
	o.Pass = train.Train
	model, err := tnp.NewModel(ctx, d, p.Config, o)
	require.NoError(t, err)
	t.Cleanup(model.Close)
	w, err := tnp.Init(p.Config, seed)
	require.NoError(t, err)
	require.NoError(t, model.SetWeights(ctx, w))
	plan, err := model.NewPlan(ctx, p.Shape, train.Train, tnp.PlanOptions{})
	require.NoError(t, err)
	t.Cleanup(plan.Close)
	return &training{t: t, model: model, plan: plan, p: p}
}

// steps runs the steps from first to end-1 and returns their losses. Their data follow from the
// numbers of the steps.
func (x *training) steps(first, end int, seed uint64, lr float64) (losses []float64) {
	ctx := context.Background()
	require.NoError(x.t, x.model.SetLR(ctx, lr))
	for i := first; i < end; i++ {
		in, y := gp.Tokens(gp.Batch(x.p.Shape, seed, uint64(i)))
		require.NoError(x.t, x.plan.SetInputs(ctx, in, y))
		require.NoError(x.t, x.plan.Run(ctx))
		loss, err := x.plan.Loss(ctx)
		require.NoError(x.t, err)
		losses = append(losses, loss)
	}
	return losses
}

func (x *training) weights() tnp.Weights {
	w, err := x.model.Weights(context.Background())
	require.NoError(x.t, err)
	return w
}

// formats returns the formats that the device multiplies in, without formats that take scalar
// paths.
func formats(d *vk.Device) []dtype.DType {
	if d.Caps().BFloat16CoopMat {
		return dtype.All()
	}
	return []dtype.DType{dtype.Float32, dtype.Float16}
}

func tiny(t testing.TB) tnp.Preset {
	p, err := tnp.PresetOf("tiny")
	require.NoError(t, err)
	return p
}

// TestOtherFile: a state of other sizes, or weights alone, are refused before anything changes.
func TestOtherFile(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	path := filepath.Join(t.TempDir(), "state.safetensors")
	a := newTraining(t, d, tiny(t), dtype.Float32, 1)
	require.NoError(t, a.model.SaveState(ctx, path, nil))
	other := tiny(t)
	other.DFF = 8
	b := newTraining(t, d, other, dtype.Float32, 1)
	before := b.weights()
	require.ErrorContains(t, b.model.LoadState(ctx, opened(t, path)), "tnp: the file has a model of 2 layers of 32, 2 heads of 16, d_ff 64, 3 components, want")
	require.Equal(t, before, b.weights())
	weights := filepath.Join(t.TempDir(), "weights.safetensors")
	require.NoError(t, tnp.Save(weights, a.weights(), a.p.Config))
	require.EqualError(t, a.model.LoadState(ctx, opened(t, weights)), `train: metadata steps="" is not a number of steps`)
	require.FileExists(t, path)
}

// TestOptimizer wants a step to do what AdamW does with the gradients of a plan of pass
// Gradients, whatever the loss scale.
func TestOptimizer(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	p := tiny(t)
	for _, scale := range []float64{1, 1024} {
		o := train.Options{Optim: optim.Default(), LossScale: scale}
		o.Optim.LR, o.Optim.Eps, o.Optim.MaxNorm, o.Optim.WeightDecay = 0.01, 1e-3, 0.5, 0.1
		x := trainingOf(t, d, p, o, 3)
		model, w := x.model, x.weights()
		in, y := gp.Tokens(gp.Batch(p.Shape, 1, 0))
		var grads tnp.Weights
		for _, pass := range []train.Pass{train.Gradients, train.Train} {
			plan, err := model.NewPlan(ctx, p.Shape, pass, tnp.PlanOptions{})
			require.NoError(t, err)
			defer plan.Close()
			require.NoError(t, plan.SetInputs(ctx, in, y))
			require.NoError(t, plan.Run(ctx))
			if pass == train.Gradients {
				grads, err = model.Gradients(ctx)
				require.NoError(t, err)
			}
		}
		norm := 0.0
		for _, g := range grads {
			for _, v := range g {
				norm += float64(v) * float64(v)
			}
		}
		norm = math.Sqrt(norm)
		require.Greater(t, norm, 0.5, "gradients are not clipped")
		after := x.weights()
		for _, param := range p.Config.Params(dtype.Float32) {
			decay := 0.1
			if len(param.Shape) == 1 {
				decay = 0
			}
			for i, g := range grads[param.Name] {
				clipped := float64(g) * 0.5 / norm // the first step: m and v corrected are g and g²
				before := float64(w[param.Name][i])
				want := before*(1-0.01*decay) - 0.01*clipped/(math.Abs(clipped)+1e-3)
				require.InDelta(t, want, after[param.Name][i], 1e-6, "scale %g, %s[%d]", scale, param.Name, i)
			}
		}
	}
}

// TestLearns trains tiny from three seeds. The loss of a model that knows only that y has
// variance 1 and noise is about 1.42. The bound below is the loss of a model that knows all but f.
func TestLearns(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	p := tiny(t)
	const steps, evaluate = 500, 20
	seeds := uint64(1)
	if vktest.Thorough(d) {
		seeds = 3
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			x := newTraining(t, d, p, dtype.Float32, seed)
			x.steps(0, 400, seed, 4e-3)
			x.steps(400, steps, seed, 1e-3)
			// Steps without a learning rate measure the loss, on data of their own.
			loss, least := 0.0, 0.0
			for i, v := range x.steps(steps, steps+evaluate, seed, 0) {
				loss, least = loss+v/evaluate, least+gp.NLL(gp.Batch(p.Shape, seed, uint64(steps+i)))/evaluate
			}
			t.Logf("loss %.3f, the process's own %.3f", loss, least)
			require.Less(t, loss, 0.8)
			require.Greater(t, loss, least)
		})
	}
}
