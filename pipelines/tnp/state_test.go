package tnp_test

import (
	"context"
	"maps"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/safetensors"
)

func opened(t testing.TB, path string) *safetensors.File {
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

// changed returns a copy of a file with other values or metadata. A tensor without values is left
// out.
func changed(t testing.TB, f *safetensors.File, change func(values map[string][]float32, metadata map[string]string)) *safetensors.File {
	values, metadata := map[string][]float32{}, maps.Clone(f.Metadata)
	for _, x := range f.Tensors() {
		v, err := f.Float32s(x)
		require.NoError(t, err)
		values[x.Name] = v
	}
	change(values, metadata)
	var tensors []safetensors.Tensor
	for _, x := range f.Tensors() {
		if values[x.Name] != nil {
			tensors = append(tensors, x)
		}
	}
	path := filepath.Join(t.TempDir(), "changed.safetensors")
	out, err := safetensors.Create(path, tensors, metadata)
	require.NoError(t, err)
	defer out.Close()
	for _, x := range tensors {
		require.NoError(t, out.WriteFloat32s(x.Name, values[x.Name]))
	}
	require.NoError(t, out.Commit())
	return opened(t, path)
}

// scaled returns a training in float32 with a loss scale.
func scaled(t testing.TB, scale float64) *training {
	return trainingOf(t, vktest.Open(t), tiny(t), tnp.ModelOptions{Optim: optim.Default(), LossScale: scale}, 1)
}

// TestOtherLossScale: a state goes on with another loss scale as without one. Scales are powers of
// two, so that no bit differs where nothing is subnormal.
func TestOtherLossScale(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "state.safetensors")
	straight := scaled(t, 16)
	straight.steps(0, 3, 2, 1e-3)
	require.NoError(t, straight.model.SaveState(ctx, path, nil))
	losses := straight.steps(3, 6, 2, 1e-3)
	for _, scale := range []float64{1, 16, 4096} {
		other := scaled(t, scale)
		require.NoError(t, other.model.LoadState(ctx, opened(t, path)))
		require.InDeltaSlice(t, losses, other.steps(3, 6, 2, 1e-3), 1e-6, "loss scale %g", scale)
		for name, x := range straight.weights() {
			require.InDeltaSlice(t, x, other.weights()[name], 1e-6, "loss scale %g, %s", scale, name)
		}
	}
}

// TestStateErrors: a file that no training has left is refused with the name of its tensor, and
// changes nothing.
func TestStateErrors(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "state.safetensors")
	x := scaled(t, 1)
	require.NoError(t, x.model.SaveState(ctx, path, nil))
	f, before := opened(t, path), x.weights()
	for want, change := range map[string]func(values map[string][]float32, metadata map[string]string){
		"adamw.v.heads.up[5] is +Inf: second moments are finite and not negative": func(v map[string][]float32, _ map[string]string) {
			v["adamw.v.heads.up"][5] = float32(math.Inf(1))
		},
		"adamw.v.norm.weight[0] is -1e-30: second moments are finite and not negative": func(v map[string][]float32, _ map[string]string) {
			v["adamw.v.norm.weight"][0] = -1e-30
		},
		"adamw.m.embed.weight[1] is NaN: moments are finite": func(v map[string][]float32, _ map[string]string) {
			v["adamw.m.embed.weight"][1] = float32(math.NaN())
		},
		`tensor "blocks.1.qkv.weight" is missing`: func(v map[string][]float32, _ map[string]string) {
			delete(v, "blocks.1.qkv.weight")
		},
		`tensor "blocks.1.down.weight" is missing`: func(v map[string][]float32, _ map[string]string) {
			delete(v, "blocks.1.down.weight")
		},
		`metadata heads="1e3" is not a number`: func(_ map[string][]float32, m map[string]string) { m["heads"] = "1e3" },
		`metadata heads="2 "`:                  func(_ map[string][]float32, m map[string]string) { m["heads"] = "2 " },
	} {
		require.ErrorContains(t, x.model.LoadState(ctx, changed(t, f, change)), ": "+want)
		require.Equal(t, before, x.weights())
	}
	large := changed(t, f, func(v map[string][]float32, _ map[string]string) { v["adamw.v.embed.weight"][2] = 1e30 })
	require.NoError(t, x.model.LoadState(ctx, large))
	require.EqualError(t, scaled(t, 1<<20).model.LoadState(ctx, large), "train: adamw.v.embed.weight[2] is beyond float32 with loss scale 1.048576e+06; the file has 1")

	// No state is written that would be refused.
	saved, err := os.ReadFile(path)
	require.NoError(t, err)
	before["norm.weight"][3] = float32(math.Inf(-1))
	require.NoError(t, x.model.SetWeights(ctx, before))
	require.EqualError(t, x.model.SaveState(ctx, path, nil), "train: norm.weight[3] is -Inf: parameters are finite")
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, saved, after)
}
