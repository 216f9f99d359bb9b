package train

import (
	"context"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/pipelines/train"
	"github.com/flashvk/flashvk/safetensors"
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

// TestTasks wants a training from a file of tasks and a file of start weights to have the batches, the sizes and the weights of
// the training that draws the same tasks and weights itself.
func TestTasks(t *testing.T) {
	file, drawn := inFolder(t), options(t, 3)
	x, y := []float32{}, []float32{}
	for i := range 3 {
		b := drawn.data(uint64(i))
		x, y = append(x, b.x...), append(y, b.y...)
	}
	n, s := 3*drawn.Batch, drawn.Shape
	list := []safetensors.Tensor{filetest.F32("x", n, s.Context+s.Targets, 3), filetest.F32("y", n, s.Targets)}
	filetest.Write(t, file("tasks"), list, map[string][]float32{"x": x, "y": y})
	w := must(drawn.weights())
	require.NoError(t, tnp.Save(file("start"), w, drawn.Config))

	o := options(t, 3)
	o.Seed, o.Context, o.Targets, o.Config, o.Start = 77, 1, 1, tnp.Config{}, file("start")
	require.NoError(t, o.ReadTasks(file("tasks")))
	require.NoError(t, o.ReadFile(false, 0))
	require.Equal(t, [2]any{drawn.Shape, drawn.Config}, [2]any{o.Shape, o.Config})
	require.Equal(t, w, must(o.weights()))
	for i := range uint64(4) { // after the last task comes the first
		require.Equal(t, drawn.data(i%3), o.data(i))
	}
	o.Batch = 2 * o.Batch
	require.Equal(t, append(append([]float32{}, drawn.data(2).y...), drawn.data(0).y...), o.data(1).y)
}
