package tnp_test

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/pipelines/tnp"
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
