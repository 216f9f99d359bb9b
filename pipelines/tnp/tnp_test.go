package tnp_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/tnp/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

func opened(t testing.TB, path string) *safetensors.File {
	f := must(safetensors.Open(path))
	t.Cleanup(func() { f.Close() })
	return f
}

// TestPresets wants each to be valid, and tokens and parameters to be counted as PyTorch's rate and its model count them.
func TestPresets(t *testing.T) {
	require.Equal(t, 36400118, tnp.Default().NumParams())
	tokens := map[string]int{"tiny": 256, "small": 18048, "mid": 11000, "large": 205000}
	for _, p := range tnp.Presets() {
		require.NoError(t, p.Config.Validate())
		require.NoError(t, p.Shape.Validate())
		require.Equal(t, tokens[p.Name], p.Tokens(), p.Name)
		require.Equal(t, p, must(tnp.PresetOf(p.Name)))
	}
	_, err := tnp.PresetOf("huge")
	require.EqualError(t, err, `tnp: shape "huge" is not one of tiny, small, mid, large`)
	c := tnp.Default()
	c.InputDim = 2
	require.EqualError(t, c.Validate(), "tnp: input_dim=2 is not from 3 to 65536")
}

// TestInit wants a seed to give its weights, another seed others, and their spread to be
// PyTorch's.
func TestInit(t *testing.T) {
	p := must(tnp.PresetOf("tiny"))
	init := func(seed uint64) tnp.Weights {
		return must(tnp.Init(p.Config, seed))
	}
	a := init(1)
	require.Equal(t, a, init(1))
	require.NotEqual(t, a["embed.weight"], init(2)["embed.weight"])
	for name, want := range map[string]float64{"norm.weight": 1, "blocks.1.qkv.weight": 1.0 / 3 / 32, "heads.up": 1.0 / 32} {
		mean := 0.0
		for _, v := range a[name] {
			mean += float64(v) * float64(v) / float64(len(a[name]))
		}
		require.InEpsilon(t, want, mean, 0.1, name) // uniform in ±1/√32 and normal have these
	}
	require.LessOrEqual(t, float64(slices.Max(a["blocks.1.qkv.weight"])), 1/math.Sqrt(32))
	p.Layers = 0
	_, err := tnp.Init(p.Config, 1)
	require.Error(t, err)
}

// TestFile wants Load to return what Save wrote, with the sizes of the model. What does not fit
// has an error that names the tensor, and leaves the file as it was.
func TestFile(t *testing.T) {
	c := tnp.Config{Layers: 3, Heads: 2, HeadDim: 8, DModel: 24, DFF: 5, Components: 4, InputDim: 4}
	w := must(tnp.Init(c, 7))
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	require.NoError(t, tnp.Save(path, w, c))
	f := opened(t, path)
	for _, heads := range []int{0, 2} {
		got, config, err := tnp.Load(f, heads)
		require.NoError(t, err)
		require.Equal(t, c, config)
		require.Equal(t, w, got)
	}
	for _, text := range []string{"1e3", "2 "} {
		f.Metadata["heads"] = text
		_, _, err := tnp.Load(f, 0)
		require.ErrorContains(t, err, "tnp: metadata heads="+strconv.Quote(text)+" is not a number")
	}
	before := must(os.ReadFile(path))
	saved := w["norm.weight"]
	w["norm.weight"] = saved[1:]
	require.ErrorContains(t, tnp.Save(path, w, c), `: 23 float32 for tensor "norm.weight", which is F32 with shape [24]`)
	w["norm.weight"] = saved
	w["more"] = saved
	require.ErrorContains(t, tnp.Save(path, w, c), "tnp: there are 23 weights, but a model of 3 layers of 24, 2 heads of 8, d_ff 5, 4 components has 22 parameters")
	delete(w, "more")
	delete(w, "heads.down")
	require.ErrorContains(t, tnp.Save(path, w, c), `: 0 float32 for tensor "heads.down"`)
	require.Equal(t, before, must(os.ReadFile(path)))
}

func TestMain(m *testing.M) { vktest.Main(m) }

// must returns x, or panics with the error.
func must[T any](x T, err error) T {
	vktest.Must(err)
	return x
}

// TestOtherFile: a state of other sizes, or weights alone, are refused before anything changes.
func TestOtherFile(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	p := must(tnp.PresetOf("tiny"))
	path, alone := filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "weights")
	o := train.Options{Pass: train.Train, Optim: optim.Default()}
	a := newTrial(p.Config, p.Shape, 1).model(t, d, o)
	require.NoError(t, a.SaveState(ctx, path, nil))
	require.NoError(t, tnp.Save(alone, must(a.Weights(ctx)), p.Config))
	require.EqualError(t, a.LoadState(ctx, opened(t, alone)), `train: metadata steps="" is not a number of steps`)
	wide, many := p.Config, p.Config
	wide.DFF, many.Heads, many.HeadDim = 8, 4, 8
	for want, c := range map[string]tnp.Config{
		`train: tensor "blocks.0.up.weight" has shape [64 32], want [8 32]`: wide, `train: metadata heads="2" is not "4"`: many,
	} {
		b := newTrial(c, p.Shape, 1).model(t, d, o)
		before := must(b.Weights(ctx))
		require.EqualError(t, b.LoadState(ctx, opened(t, path)), want)
		require.Equal(t, before, must(b.Weights(ctx)))
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
		after := must(model.Weights(ctx))
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

// TestMemory wants the presets to take what issue 19 allows, and each checkpoint less than the one
// before.
func TestMemory(t *testing.T) {
	caps := *vktest.Open(t).Caps()
	caps.MaxAllocationBytes, caps.MaxBufferBytes, caps.MaxStorageBufferRange = 4<<30, 4<<30, 4<<30 // for the largest shape
	caps.MaxWorkgroupCount = [3]uint32{1<<31 - 1, 1<<16 - 1, 1<<16 - 1}
	o := train.Options{DType: dtype.Float16, Pass: train.Train, Optim: optim.Default()}
	for name, most := range map[string][]int64{ // GB: off, selective, blocks
		"small": {5, 5, 5}, "mid": {5, 5, 5}, "large": {30, 9, 7},
	} {
		p := must(tnp.PresetOf(name))
		var bytes []int64
		for i, c := range []train.Checkpoint{train.Off, train.Selective, train.Blocks} {
			m := must(tnp.Measure(&caps, p.Config, p.Shape, o, tnp.PlanOptions{Checkpoint: c}))
			t.Logf("%s, checkpoint %v: %v", name, c, m)
			require.Equal(t, c, m.Checkpoint)
			require.Less(t, m.Bytes(), most[i]*1e9, "%s, checkpoint %v", name, c)
			if i > 0 {
				require.Less(t, m.Bytes(), bytes[i-1], "%s, checkpoint %v", name, c)
			}
			require.LessOrEqual(t, float64(m.Plan.Bytes), 1.1*float64(m.Plan.Live), "%s, checkpoint %v: gaps", name, c)
			bytes = append(bytes, m.Bytes())
		}
	}
}

// TestByName: the holders of a plan's memory are all of it, each name once.
func TestByName(t *testing.T) {
	d := vktest.Open(t)
	p := must(tnp.PresetOf("tiny"))
	for _, format := range []dtype.DType{dtype.Float32, dtype.Float16} {
		m := must(tnp.Measure(d.Caps(), p.Config, p.Shape, train.Options{DType: format, Pass: train.Train, Optim: optim.Default()}, tnp.PlanOptions{}))
		sum, names := int64(0), map[string]int64{}
		for _, h := range m.ByName() {
			require.Zero(t, names[h.Name], h.Name)
			require.Positive(t, h.Bytes, h.Name)
			names[h.Name], sum = h.Bytes, sum+h.Bytes
		}
		require.Equal(t, m.Bytes(), sum)
		require.Equal(t, names["weights"], names["second moments"])
		require.Equal(t, format == dtype.Float16, names["weights, rounded"] > 0)
		require.Positive(t, names["pre"], "of both blocks")
		require.Equal(t, m.Parts[0].Name, m.ByName()[0].Name)
	}
}

// A trial is a model with a batch. The weights are random, as the norms of Init are 1.
type trial struct {
	c    tnp.Config
	s    tnp.Shape
	w    tnp.Weights
	x, y []float32
	ran  []string // kernels of the last run

	exact    ref.Outputs          // of the reference
	gradient map[string][]float64 // of sampled elements
	elements int                  // about as many of a parameter
}

func newTrial(c tnp.Config, s tnp.Shape, elements int) *trial {
	rng := rand.New(rand.NewPCG(uint64(c.Layers), uint64(s.Batch)))
	normal := func(n int, scale float64) (x []float32) {
		for range n {
			x = append(x, float32(scale*rng.NormFloat64()))
		}
		return x
	}
	t := &trial{c: c, s: s, w: tnp.Weights{}, x: normal(s.Tokens()*c.InputDim, 1), y: normal(s.Batch*s.Targets, 1), elements: elements}
	for _, p := range c.Params(dtype.Float32) {
		scale := 1.0
		if len(p.Shape) > 1 {
			scale = 1 / math.Sqrt(float64(p.Shape[1]))
		}
		t.w[p.Name] = normal(p.Size(), scale)
	}
	return t
}

func wide(x []float32) (y []float64) {
	for _, v := range x {
		y = append(y, float64(v))
	}
	return y
}

// reference returns the model of the reference.
func (t *trial) reference() ref.Model {
	m := ref.Model{Config: t.c, Shape: t.s, Weights: map[string][]float64{}, Inputs: ref.Inputs{X: wide(t.x), Y: wide(t.y)}}
	for name, x := range t.w {
		m.Weights[name] = wide(x)
	}
	return m
}

// TestVisible: in the reference context sees context, targets see context, no target sees another or its own y.
func TestVisible(t *testing.T) {
	m := newTrial(tnp.Config{Layers: 2, Heads: 2, HeadDim: 8, DModel: 24, DFF: 5, Components: 3, InputDim: 4}, tnp.Shape{Batch: 2, Context: 3, Targets: 4}, 1).reference()
	before, length := m.Forward(), m.Context+m.Targets
	for row := range length { // of the second task
		moved := m
		moved.X = slices.Clone(m.X)
		moved.X[(length+row)*m.InputDim] += 0.5
		after := moved.Forward()
		for i := range after.LogP {
			changes := i/m.Targets == 1 && (row < m.Context || row-m.Context == i%m.Targets)
			require.Equal(t, changes, before.LogP[i] != after.LogP[i], "row %d, target %d", row, i)
		}
	}
}

// expect computes the results of the reference, once.
func (t *trial) expect() {
	if t.gradient != nil {
		return
	}
	m := t.reference()
	t.exact, t.gradient = m.Forward(), map[string][]float64{}
	for name, x := range t.w {
		t.gradient[name] = m.Gradient(name, t.distance(len(x)))
	}
}

// distance returns how far apart the elements of a parameter are whose gradients are compared. They are of all columns,
// since it is odd.
func (t *trial) distance(size int) int { return size/t.elements | 1 }

// model returns a model with the weights of the trial.
func (t *trial) model(tt *testing.T, d *vk.Device, o train.Options) *train.Model {
	model := must(tnp.NewModel(context.Background(), d, t.c, o))
	tt.Cleanup(model.Close)
	require.NoError(tt, model.SetWeights(context.Background(), t.w))
	return model
}

// plan runs a pass over the batch.
func (t *trial) plan(tt *testing.T, model *train.Model, pass train.Pass, o tnp.PlanOptions) *tnp.Plan {
	ctx := context.Background()
	plan := must(tnp.NewPlan(ctx, model, t.c, t.s, pass, o))
	tt.Cleanup(plan.Close)
	require.NoError(tt, plan.SetInputs(ctx, t.x, t.y))
	require.NoError(tt, plan.Run(ctx))
	return plan
}

// run returns the loss, log p and the gradients of the trial on a device, and notes the kernels.
func (t *trial) run(tt *testing.T, d *vk.Device, m train.Options, o tnp.PlanOptions) (loss float64, logP []float32, grads tnp.Weights) {
	ctx := context.Background()
	model := t.model(tt, d, m)
	plan := t.plan(tt, model, train.Gradients, o)
	t.ran = nil
	for _, x := range plan.Modules() {
		kernel, _, _ := strings.Cut(x.Name, ".")
		t.ran = append(t.ran, kernel)
	}
	return must(plan.Loss(ctx)), must(plan.LogP(ctx)), must(model.Gradients(ctx))
}

// compare wants results that are off by a part of the largest at most: by about three times what they were off by on
// lavapipe as this was written, 1.5e-6 in float32, 0.006 in float16 and 0.035 in bfloat16.
func compare(t *testing.T, name string, got []float32, want []float64, most float64) {
	largest := max(slices.Max(want), -slices.Min(want))
	off := guard.Off(wide(got), want)
	t.Logf("%s is off by %.3g of %.3g", name, off/largest, largest)
	require.LessOrEqual(t, off, most*largest, "%s is off, of %g", name, largest)
}

// check runs the trial, and compares its results with the reference.
func (t *trial) check(tt *testing.T, d *vk.Device, format dtype.DType, o tnp.PlanOptions) (loss float64, logP []float32, grads tnp.Weights) {
	scale := tnp.DefaultLossScale(format, t.s)
	loss, logP, grads = t.run(tt, d, train.Options{DType: format, Pass: train.Gradients, LossScale: scale}, o)
	t.expect()
	most := map[dtype.DType]float64{dtype.Float32: 5e-6, dtype.Float16: 0.015, dtype.BFloat16: 0.1}[format]
	compare(tt, "log p", logP, t.exact.LogP, most)
	compare(tt, "loss", []float32{float32(loss)}, []float64{t.exact.Loss}, most)
	for _, p := range t.c.Params(format) {
		var got []float32
		for i := 0; i < p.Size(); i += t.distance(p.Size()) {
			got = append(got, grads[p.Name][i])
		}
		compare(tt, p.Name, got, t.gradient[p.Name], most)
	}
	return loss, logP, grads
}

// trials returns one block and more; one task, whose rows are views, and more, whose rows are
// copies; sizes that are multiples of 8 and not; and, on a GPU, a batch that fills it.
func trials(d *vk.Device) []*trial {
	list := []*trial{
		newTrial(tnp.Config{Layers: 2, Heads: 2, HeadDim: 8, DModel: 24, DFF: 13, Components: 3, InputDim: 4}, tnp.Shape{Batch: 2, Context: 7, Targets: 5}, 200),
		newTrial(tnp.Config{Layers: 3, Heads: 1, HeadDim: 16, DModel: 32, DFF: 40, Components: 1, InputDim: 3}, tnp.Shape{Batch: 1, Context: 9, Targets: 20}, 100),
		newTrial(tnp.Config{Layers: 1, Heads: 3, HeadDim: 8, DModel: 16, DFF: 8, Components: 4, InputDim: 9}, tnp.Shape{Batch: 3, Context: 1, Targets: 1}, 200),
	}
	if vktest.Thorough(d) {
		list = append(list, newTrial(tnp.Config{Layers: 2, Heads: 4, HeadDim: 64, DModel: 256, DFF: 341, Components: 5, InputDim: 3}, tnp.Shape{Batch: 4, Context: 64, Targets: 200}, 10))
	}
	return list
}

// TestGradients compares loss, log p and the gradients by all parameters with the reference, in
// every format. Every checkpoint has the same bits.
func TestGradients(t *testing.T) {
	d := vktest.Open(t)
	for i, trial := range trials(d) {
		for j, format := range dtype.All() {
			t.Run(fmt.Sprint(i, format), func(t *testing.T) {
				loss, logP, grads := trial.check(t, d, format, tnp.PlanOptions{})
				o := tnp.PlanOptions{Checkpoint: []train.Checkpoint{train.Selective, train.Blocks}[(i+j)%2]}
				l, p, g := trial.check(t, d, format, o)
				require.Equal(t, []any{loss, logP, grads}, []any{l, p, g}, o.Checkpoint)
			})
		}
	}
}

// TestVariants compares every variant that the device has, and wants its kernels.
func TestVariants(t *testing.T) {
	d := vktest.Open(t)
	trial := trials(d)[0]
	for v, kernels := range map[tnp.Variant]map[string]bool{
		tnp.Unfused:  {"attention_unfused_softmax": true, "gmm_fwd": true, "gemm_pair": false, "gemm_mixture": false},
		tnp.Separate: {"attention_unfused_softmax": false, "gmm_fwd": true, "gemm_pair": false, "gemm_mixture": false},
		tnp.Fused:    {"attention_unfused_softmax": false, "gmm_fwd": false, "gemm_pair": true, "gemm_mixture": true},
	} {
		for _, format := range dtype.All() {
			if format == dtype.BFloat16 && !d.Caps().BFloat16CoopMat {
				continue // scalar paths, as float32 has
			}
			t.Run(fmt.Sprint(v, format), func(t *testing.T) {
				o := tnp.PlanOptions{Variant: v}
				_, err := tnp.Measure(d.Caps(), trial.c, trial.s, train.Options{DType: format, Pass: train.Gradients}, o)
				if v == tnp.Fused {
					vktest.Require(t, "fused", err)
				}
				require.NoError(t, err)
				trial.check(t, d, format, o)
				for kernel, there := range kernels {
					require.Equal(t, there, slices.Contains(trial.ran, kernel), "%s in %v", kernel, trial.ran)
				}
			})
		}
	}
}

// TestQuant wants the gradients of a model with Q and K in 8 bits to be near those without: the norm of what they are off by,
// of their norm. With scores 64 times as large, gradients from the LSE of E4M3 are off by 81. Checkpoints give the same bits.
func TestQuant(t *testing.T) {
	d := vktest.Open(t)
	for _, x := range []struct {
		quant         dtype.Quant
		weights, most float64
	}{{dtype.QuantInt8, 1, 0.01}, {dtype.QuantE4M3, 1, 0.04}, {dtype.QuantE4M3, 8, 0.3}} {
		t.Run(fmt.Sprint(x.quant, x.weights), func(t *testing.T) {
			trial := newTrial(tnp.Config{Layers: 2, Heads: 2, HeadDim: 32, DModel: 64, DFF: 40, Components: 3, InputDim: 3}, tnp.Shape{Batch: 2, Context: 70, Targets: 20}, 1)
			for i := range 2 * 64 * 64 { // of Q and K
				trial.w[tnp.BlockName(0, "qkv.weight")][i] *= float32(x.weights)
			}
			m := train.Options{DType: dtype.Float16, Pass: train.Gradients, LossScale: tnp.DefaultLossScale(dtype.Float16, trial.s)}
			_, _, want := trial.run(t, d, m, tnp.PlanOptions{})
			loss, logP, grads := trial.run(t, d, m, tnp.PlanOptions{Quant: x.quant})
			require.Contains(t, strings.Join(trial.ran, " "), "attention_fwd_quant_")
			off, size := 0.0, 0.0
			for name, w := range want {
				for i, v := range w {
					off, size = off+math.Pow(float64(grads[name][i]-v), 2), size+float64(v*v)
				}
			}
			t.Logf("off by %.4f", math.Sqrt(off/size))
			require.Less(t, math.Sqrt(off/size), x.most)
			l, p, g := trial.run(t, d, m, tnp.PlanOptions{Quant: x.quant, Checkpoint: train.Blocks})
			require.Equal(t, []any{loss, logP, grads}, []any{l, p, g})
		})
	}
}
