package main

import (
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/pipelines/tnp/ref"
	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/safetensors"
)

// writeModel writes weights and a batch, and returns what the reference makes of them.
func writeModel(t *testing.T, path string, c tnp.Config, s tnp.Shape) ref.Outputs {
	rng := rand.New(rand.NewPCG(1, 1))
	normal := func(n int) ([]float32, []float64) {
		x, y := make([]float32, n), make([]float64, n)
		for i := range x {
			x[i] = float32(rng.NormFloat64())
			y[i] = float64(x[i])
		}
		return x, y
	}
	w, err := tnp.Init(c, 1)
	require.NoError(t, err)
	var tensors []safetensors.Tensor
	wide := map[string][]float64{}
	for _, p := range c.Params() {
		tensors = append(tensors, safetensors.Tensor{Name: p.Name, DType: safetensors.F32, Shape: p.Shape})
		for _, v := range w[p.Name] {
			wide[p.Name] = append(wide[p.Name], float64(v))
		}
	}
	tensors = append(tensors, safetensors.Tensor{Name: "x", DType: safetensors.F32, Shape: []int{s.Batch, s.Context + s.Targets, c.InputDim}},
		safetensors.Tensor{Name: "y", DType: safetensors.F32, Shape: []int{s.Batch, s.Targets}})
	x, x64 := normal(s.Tokens() * c.InputDim)
	y, y64 := normal(s.Batch * s.Targets)
	w["x"], w["y"] = x, y
	filetest.Write(t, path, tensors, w)
	return ref.Compute(wide, ref.Inputs{X: x64, Y: y64}, c, s)
}

// TestRunModel: any language can check the whole model: sizes follow from the file, and loss,
// log p and gradients are those of the reference.
func TestRunModel(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	c, s := tnp.Config{Layers: 2, Heads: 2, HeadDim: 8, DModel: 16, DFF: 11, Components: 2, InputDim: 4}, tnp.Shape{Batch: 2, Context: 3, Targets: 4}
	want := writeModel(t, in, c, s)
	for _, checkpoint := range []string{"off", "selective", "blocks"} {
		code, stdout, stderr := flashvk("run", "model", dev, "--in", in, "--out", out, "--heads=2", "--context=3", "--backward", "--checkpoint", checkpoint)
		require.Zero(t, code, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, "; checkpoint "+checkpoint+"\n")
		f, err := safetensors.Open(out)
		require.NoError(t, err)
		compare := func(name string, shape []int, want []float64) {
			x, ok := f.Tensor(name)
			require.True(t, ok, name)
			require.Equal(t, shape, x.Shape, name)
			got, err := f.Float32s(x)
			require.NoError(t, err)
			largest := 0.0
			for _, v := range want {
				largest = max(largest, math.Abs(v))
			}
			for i, v := range want {
				require.InDelta(t, v, got[i], 1e-5*largest, "%s[%d]", name, i)
			}
		}
		compare("loss", []int{1}, []float64{want.Loss})
		compare("log_p", []int{2, 4}, want.LogP)
		require.Len(t, f.Tensors(), 2+len(c.Params()))
		for _, p := range c.Params() {
			compare("grad."+p.Name, p.Shape, want.Grads[p.Name])
		}
		require.NoError(t, f.Close())
	}
	// Without gradients there are predictions, and without y these alone.
	blind := filepath.Join(dir, "blind")
	dropTensor(t, in, blind, "y")
	for path, names := range map[string][]string{in: {"deviation", "log_p", "loss", "mean"}, blind: {"deviation", "mean"}} {
		code, _, stderr := flashvk("run", "model", dev, "--in", path, "--out", out, "--heads=2", "--context=3")
		require.Zero(t, code, stderr)
		f, err := safetensors.Open(out)
		require.NoError(t, err)
		var got []string
		values := map[string][]float32{}
		for _, x := range f.Tensors() {
			got = append(got, x.Name)
			if values[x.Name], err = f.Float32s(x); x.Name != "loss" {
				require.Equal(t, []int{2, 4}, x.Shape, x.Name)
			}
			require.NoError(t, err)
		}
		require.ElementsMatch(t, names, got)
		for i := range values["mean"] {
			mean, deviation := mixtureMoments(want.Heads[i*3*c.Components : (i+1)*3*c.Components])
			require.InDelta(t, mean, values["mean"][i], 1e-5)
			require.InDelta(t, deviation, values["deviation"][i], 1e-5)
		}
		require.NoError(t, f.Close())
	}
	// Weights of another file, such as a training writes, and tasks as it reads them.
	weights, data := filepath.Join(dir, "weights"), filepath.Join(dir, "data")
	w, err := tnp.Init(c, 1)
	require.NoError(t, err)
	require.NoError(t, tnp.Save(weights, w, c))
	dropTensor(t, in, data, slices.Collect(maps.Keys(w))...)
	code, _, stderr := flashvk("run", "model", dev, "--weights", weights, "--in", data, "--out", out+"2")
	require.Zero(t, code, stderr)
	code, _, stderr = flashvk("run", "model", dev, "--in", in, "--out", out, "--heads=2", "--context=3")
	require.Zero(t, code, stderr)
	whole, err := os.ReadFile(out)
	require.NoError(t, err)
	parts, err := os.ReadFile(out + "2")
	require.NoError(t, err)
	require.Equal(t, whole, parts)

	code, _, stderr = flashvk("run", "model", dev, "--in", blind, "--out", out, "--heads=2", "--context=3", "--backward")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, blind+`: tensor "y", of the batch, is missing`)
}

// mixtureMoments returns mean and deviation of a mixture of (logit, mu, log sigma).
func mixtureMoments(heads []float64) (mean, deviation float64) {
	sum, square := 0.0, 0.0
	for i := 0; i < len(heads); i += 3 {
		w, mu, sigma := math.Exp(heads[i]), heads[i+1], math.Exp(heads[i+2])
		sum, mean, square = sum+w, mean+w*mu, square+w*(mu*mu+sigma*sigma)
	}
	mean /= sum
	return mean, math.Sqrt(square/sum - mean*mean)
}

// dropTensor copies a file of float32 without some tensors.
func dropTensor(t *testing.T, from, to string, names ...string) {
	f, err := safetensors.Open(from)
	require.NoError(t, err)
	defer f.Close()
	list := slices.DeleteFunc(slices.Clone(f.Tensors()), func(x safetensors.Tensor) bool { return slices.Contains(names, x.Name) })
	require.Len(t, list, len(f.Tensors())-len(names))
	out, err := safetensors.Create(to, list, f.Metadata)
	require.NoError(t, err)
	defer out.Close()
	for _, x := range list {
		values, err := f.Float32s(x)
		require.NoError(t, err)
		require.NoError(t, out.WriteFloat32s(x.Name, values))
	}
	require.NoError(t, out.Commit())
}

// TestRunModelErrors: mistakes are found before a device is opened.
func TestRunModelErrors(t *testing.T) {
	dir := t.TempDir()
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	writeModel(t, in, tnp.Config{Layers: 1, Heads: 2, HeadDim: 8, DModel: 16, DFF: 3, Components: 2, InputDim: 3}, tnp.Shape{Batch: 1, Context: 3, Targets: 4})
	blind := filepath.Join(dir, "blind")
	dropTensor(t, in, blind, "y")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 2, "run model needs --in FILE"},
		{[]string{"--in", in}, 2, "run model needs --out FILE"},
		{[]string{"--in", in, "--out", out, "--context=-1"}, 2, "run model: --context -1 is negative"},
		{[]string{"--in", blind, "--out", out, "--heads=2"}, 2, "run model needs --context N: " + blind + " has no y that tells the targets"},
		{[]string{"--in", in, "--weights", out, "--out", out}, 2, "--out " + out + " is the input, whose other tensors would be lost"},
		{[]string{"--in", in, "--weights", in + "none", "--out", out}, 1, in + "none: no such file or directory"},
		{[]string{"--in", in, "--out", out, "--context=3", "--heads=-1"}, 2, "run model: --heads -1 is negative"},
		{[]string{"--in", in, "--out", out, "--context=3", "--loss-scale=3"}, 2, "tnp: loss_scale=3 is not a power of two"},
		{[]string{"--in", in, "--out", out, "--context=3"}, 1, "tnp: heads=0 is not positive, and the file does not say how many there are"},
		{[]string{"--in", in, "--out", out, "--context=7", "--heads=2"}, 1, `tensor "x" has shape [1 7 3]: with --context 7 there are no targets`},
		{[]string{"--in", in, "--out", out, "--context=2", "--heads=2"}, 1, `tensor "y" has shape [1 4], want [1 5]`},
	} {
		code, stdout, stderr := flashvk(append([]string{"run", "model"}, c.args...)...)
		require.Equal(t, c.code, code, c.args)
		require.Empty(t, stdout)
		require.Contains(t, stderr, c.want, c.args)
	}
}
