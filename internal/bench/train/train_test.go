package train

import (
	"context"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/train"
)

// options train tiny for some steps.
func options(t testing.TB, steps int) *Options {
	p := must(tnp.PresetOf("tiny"))
	return &Options{Config: p.Config, Shape: p.Shape, Schedule: Schedule{Steps: steps, Warmup: 2, LR: 1e-3, WeightDecay: 0.01, Seed: 5}}
}

func nothing(Row) {}

// must returns x, or panics with the error.
func must[T any](x T, err error) T {
	vktest.Must(err)
	return x
}

// TestSchedule: up along a line, down along a cosine, or level.
func TestSchedule(t *testing.T) {
	o := Schedule{Steps: 12, Warmup: 4, LR: 2}
	for step, want := range map[int]float64{0: 0.5, 1: 1, 3: 2, 4: 2, 6: 1 + math.Sqrt2/2, 8: 1, 12: 0} {
		require.InDelta(t, want, o.LRAt(step), 1e-12, step)
	}
	o.Constant = true
	require.Equal(t, 2.0, o.LRAt(11))
	o.Warmup = 0
	require.Equal(t, 2.0, o.LRAt(0))
}

// inFolder returns names in a folder of the test's.
func inFolder(t testing.TB) func(string) string {
	dir := t.TempDir()
	return func(name string) string { return filepath.Join(dir, name) }
}

// TestEachItsBatch: batches uploaded beside the one before have the losses of those that are
// uploaded, run and waited for one after the other.
func TestEachItsBatch(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	o := options(t, 4)
	o.Accumulate = 3
	got := must(Run(ctx, d, o, nothing))
	require.Len(t, got.Rows, o.Steps)

	model := must(tnp.NewModel(ctx, d, o.Config, o.model()))
	defer model.Close()
	require.NoError(t, model.SetWeights(ctx, must(o.weights())))
	plan := must(tnp.NewPlan(ctx, model, o.Config, o.Shape, train.Train, tnp.PlanOptions{}))
	defer plan.Close()
	for step := range o.Steps {
		want := 0.0
		require.NoError(t, model.SetLR(ctx, o.LRAt(step)))
		for i := range o.perStep() {
			b := o.data(uint64(step*o.perStep() + i))
			require.NoError(t, plan.SetInputs(ctx, b.x, b.y))
			require.NoError(t, plan.Run(ctx))
			want += must(plan.Loss(ctx)) / float64(o.perStep())
		}
		require.Equal(t, want, got.Rows[step].Loss, "step %d of %d batches", step+1, o.perStep())
	}
}
