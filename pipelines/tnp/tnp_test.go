package tnp_test

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/safetensors"
)

func opened(t testing.TB, path string) *safetensors.File {
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// TestParams wants the parameters of PyTorch's model.
func TestParams(t *testing.T) {
	require.Equal(t, 36400118, tnp.Default().NumParams())
	params := tnp.Default().Params(dtype.Float32)
	require.Len(t, params, 1+12*6+3)
	shapes := map[string][]int{}
	for _, p := range params {
		shapes[p.Name] = p.Shape
	}
	for name, want := range map[string][]int{
		"embed.weight": {512, 3}, "blocks.0.norm1.weight": {512}, "blocks.11.qkv.weight": {1536, 512},
		"blocks.11.out.weight": {512, 512}, "blocks.11.norm2.weight": {512}, "blocks.11.up.weight": {1365, 512},
		"blocks.11.down.weight": {512, 1365}, "norm.weight": {512}, "heads.up": {10, 512, 1365}, "heads.down": {10, 1365, 3},
	} {
		require.Equal(t, want, shapes[name], name)
	}
}

// TestPresets wants each to be valid, and tokens to be counted as PyTorch's rate counts them.
func TestPresets(t *testing.T) {
	tokens := map[string]int{"tiny": 256, "small": 18048, "mid": 11000, "large": 205000}
	for _, p := range tnp.Presets() {
		require.NoError(t, p.Config.Validate())
		require.NoError(t, p.Shape.Validate())
		require.Equal(t, tokens[p.Name], p.Tokens(), p.Name)
		got, err := tnp.PresetOf(p.Name)
		require.NoError(t, err)
		require.Equal(t, p, got)
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
	p, err := tnp.PresetOf("tiny")
	require.NoError(t, err)
	c := p.Config
	a, err := tnp.Init(c, 1)
	require.NoError(t, err)
	again, err := tnp.Init(c, 1)
	require.NoError(t, err)
	require.Equal(t, a, again)
	other, err := tnp.Init(c, 2)
	require.NoError(t, err)
	require.NotEqual(t, a["embed.weight"], other["embed.weight"])

	square := func(x []float32) (mean float64) {
		for _, v := range x {
			mean += float64(v) * float64(v) / float64(len(x))
		}
		return mean
	}
	require.Equal(t, 1.0, square(a["norm.weight"]))
	require.InEpsilon(t, 1.0/3/32, square(a["blocks.1.qkv.weight"]), 0.1) // of a uniform distribution in ±1/√32
	require.InEpsilon(t, 1.0/32, square(a["heads.up"]), 0.1)
	for _, v := range a["blocks.1.qkv.weight"] {
		require.LessOrEqual(t, math.Abs(float64(v)), 1/math.Sqrt(32))
	}
	c.Layers = 0
	_, err = tnp.Init(c, 1)
	require.Error(t, err)
}

// TestFile wants Load to return what Save wrote, with the sizes of the model. What does not fit
// has an error that names the tensor, and leaves the file as it was.
func TestFile(t *testing.T) {
	c := tnp.Config{Layers: 3, Heads: 2, HeadDim: 8, DModel: 24, DFF: 5, Components: 4, InputDim: 4}
	w, err := tnp.Init(c, 7)
	require.NoError(t, err)
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
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	saved := w["norm.weight"]
	w["norm.weight"] = saved[1:]
	require.ErrorContains(t, tnp.Save(path, w, c), `: 23 float32 for tensor "norm.weight", which is F32 with shape [24]`)
	w["norm.weight"] = saved
	w["more"] = saved
	require.ErrorContains(t, tnp.Save(path, w, c), "tnp: there are 23 weights, but a model of 3 layers of 24, 2 heads of 8, d_ff 5, 4 components has 22 parameters")
	delete(w, "more")
	delete(w, "heads.down")
	require.ErrorContains(t, tnp.Save(path, w, c), `: 0 float32 for tensor "heads.down"`)
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after)
}
