package train

import (
	"context"
	"crypto/sha256"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/safetensors"
)

// stepping runs batches one after the other, or each uploaded beside the batch before. Every fresh-th
// batch is recorded anew, none if fresh is 0. It returns losses, states, gradients and weights.
func stepping(r *run, o PlanOptions, beside bool, fresh int) (bits []any) {
	t, ctx := r.t, r.t.Context()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	plan := must(r.m.NewPlan(ctx, r.s.f, Train, o))
	defer plan.Close()
	upload := func(i int) { // from memory that the upload before must have taken
		rng := rand.New(rand.NewPCG(5, uint64(i)))
		for j := range r.ids {
			r.ids[j] = int32(rng.IntN(r.s.ids))
		}
		for j := range r.y {
			r.y[j] = float32(rng.NormFloat64())
		}
		require.NoError(t, plan.Tensor("ids").UploadInts(ctx, r.ids))
		require.NoError(t, plan.Upload(ctx, "y", r.y))
	}
	upload(0)
	for i := range 7 {
		if !beside {
			upload(i)
		}
		require.NoError(t, r.m.SetLR(ctx, 1e-3*float64(1+i%4)))
		run := plan.Run
		switch {
		case fresh > 0 && i%fresh == 1:
			run = plan.RunFresh
		case beside:
			require.ErrorIs(t, plan.Start(ended), context.Canceled, "nothing is submitted")
			run = plan.Start
		}
		require.NoError(t, run(ctx))
		if i%3 == 2 { // at once: it waits for the batch
			path := filepath.Join(t.TempDir(), "state")
			require.NoError(t, r.m.SaveState(ctx, path, nil))
			bits = append(bits, sha256.Sum256(must(os.ReadFile(path))))
		}
		if beside {
			upload(i + 1)
		}
		bits = append(bits, loss(plan))
	}
	return append(bits, r.gradients(), r.weights())
}

// TestStart wants batches that are started, and uploaded beside the one before, to give the bits of
// batches that are waited for, states saved while they run among them.
func TestStart(t *testing.T) {
	d := vktest.Open(t)
	for _, format := range []dtype.DType{dtype.Float32, dtype.Float16} {
		for _, accumulate := range []int{1, 3} {
			for _, checkpoint := range []Checkpoint{Off, Blocks} {
				start := func(beside bool, fresh int) []any {
					o := trainOptions()
					o.DType, o.Accumulate = format, accumulate
					return stepping(newRun(t, d, model(2, 6), o), PlanOptions{Checkpoint: checkpoint}, beside, fresh)
				}
				want := start(false, 0)
				require.NotEqual(t, want[0], want[1])
				require.Equal(t, want, start(true, 0), "%v, %d batches, %v", format, accumulate, checkpoint)
				require.Equal(t, want, start(true, 2), "%v, %d batches, %v, recorded anew", format, accumulate, checkpoint)
			}
		}
	}
}

// TestState: a state goes on with another loss scale as without one, where nothing is subnormal. A file
// that no training has left is refused with the name of its tensor, and changes nothing. No file is
// written that would be refused.
func TestState(t *testing.T) {
	d, ctx := vktest.Open(t), t.Context()
	path := filepath.Join(t.TempDir(), "state")
	start := func(scale float64) (*run, *Plan) {
		o := trainOptions()
		o.LossScale = scale
		r := newRun(t, d, model(2, 6), o)
		return r, r.with(Train, PlanOptions{})
	}
	opened := func(path string) *safetensors.File {
		f := must(safetensors.Open(path))
		t.Cleanup(func() { f.Close() })
		return f
	}
	r, plan := start(16)
	require.NoError(t, r.m.SaveState(ctx, path, nil))
	require.NoError(t, plan.Run(ctx))
	before := r.weights()
	for _, scale := range []float64{1, 16, 4096} {
		other, plan := start(scale)
		require.NoError(t, other.m.LoadState(ctx, opened(path)))
		require.NoError(t, plan.Run(ctx))
		for name, x := range other.weights() {
			require.InDeltaSlice(t, before[name], x, 1e-6, "loss scale %g, %s", scale, name)
		}
	}
	f := opened(path)
	changed := func(name string, change func(x []float32)) *safetensors.File {
		values, file := map[string][]float32{}, filepath.Join(t.TempDir(), "changed")
		var tensors []safetensors.Tensor
		for _, x := range f.Tensors() {
			v := must(f.Float32s(x))
			if x.Name == name && change == nil {
				continue
			} else if x.Name == name {
				change(v)
			}
			tensors, values[x.Name] = append(tensors, x), v
		}
		filetest.Write(t, file, tensors, values)
		c := opened(file)
		c.Metadata = f.Metadata
		return c
	}
	for name, c := range map[string]struct {
		change func(x []float32)
		want   string
	}{
		"adamw.v.head": {func(x []float32) { x[5] = float32(math.Inf(1)) }, "[5] is +Inf: second moments are finite and not negative"},
		"adamw.v.norm": {func(x []float32) { x[0] = -1e-30 }, "[0] is -1e-30: second moments are finite and not negative"},
		"adamw.m.tied": {func(x []float32) { x[1] = float32(math.NaN()) }, "[1] is NaN: moments are finite"},
	} {
		require.EqualError(t, r.m.LoadState(ctx, changed(name, c.change)), "train: "+name+c.want)
		require.Equal(t, before, r.weights())
	}
	require.EqualError(t, r.m.LoadState(ctx, changed("N.up", nil)), `train: tensor "N.up" is missing`)
	require.Equal(t, before, r.weights())
	large := changed("adamw.v.head", func(x []float32) { x[2] = 1e32 })
	require.NoError(t, r.m.LoadState(ctx, large))
	other, _ := start(1 << 20)
	require.EqualError(t, other.m.LoadState(ctx, large), "train: adamw.v.head[2] is beyond float32 with loss scale 1.048576e+06; the file has 16")

	saved := must(os.ReadFile(path))
	before["norm"][3] = float32(math.Inf(-1))
	require.NoError(t, r.m.SetWeights(ctx, before))
	require.EqualError(t, r.m.SaveState(ctx, path, nil), "train: norm[3] is -Inf: parameters are finite")
	require.Equal(t, saved, must(os.ReadFile(path)))
}
