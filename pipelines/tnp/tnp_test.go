package tnp_test

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
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
