package train

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/safetensors"
)

// writeTasks writes a file of tasks.
func writeTasks(t testing.TB, path string, tensors map[string][]float32, shapes map[string][]int) {
	var list []safetensors.Tensor
	for name := range tensors {
		list = append(list, filetest.F32(name, shapes[name]...))
	}
	filetest.Write(t, path, list, tensors)
}

// TestTasks wants a training from a file of tasks and a file of start weights to equal the training
// that draws the same tasks and weights itself, and an evaluation of the tasks to have equal losses.
func TestTasks(t *testing.T) {
	d := vktest.Open(t)
	file := inFolder(t)
	drawn := options(t, 3)
	drawn.CSV, drawn.Weights = file("drawn.csv"), file("weights")
	_, err := Run(context.Background(), d, drawn, nothing)
	require.NoError(t, err)

	x, y := []float32{}, []float32{}
	for i := range 3 {
		b := drawn.data(uint64(i))
		x, y = append(x, b.x...), append(y, b.y...)
	}
	n, s := 3*drawn.Batch, drawn.Shape
	writeTasks(t, file("tasks"), map[string][]float32{"x": x, "y": y}, map[string][]int{"x": {n, s.Context + s.Targets, 3}, "y": {n, s.Targets}})
	w, err := tnp.Init(drawn.Config, drawn.Seed)
	require.NoError(t, err)
	require.NoError(t, tnp.Save(file("start"), w, drawn.Config))

	o := options(t, 3)
	o.Seed, o.Context, o.Targets, o.Config = 77, 1, 1, tnp.Config{}
	o.CSV, o.Start, o.Curve, o.Beside = file("read.csv"), file("start"), file("curve"), []Beside{{"drawn", drawn.CSV}}
	require.NoError(t, o.ReadTasks(file("tasks")))
	require.NoError(t, o.ReadFile(false, 0))
	require.Equal(t, drawn.Shape, o.Shape)
	require.Equal(t, drawn.Config, o.Config)
	_, err = Run(context.Background(), d, o, nothing)
	require.NoError(t, err)
	require.Equal(t, columns(t, drawn.CSV), columns(t, o.CSV))

	require.Contains(t, read(t, file("curve.svg")), ">drawn<")

	// After the last task comes the first.
	require.Equal(t, o.data(0), o.data(3))
	o.Batch = 2 * o.Batch
	require.Equal(t, append(append([]float32{}, drawn.data(2).y...), drawn.data(0).y...), o.data(1).y)
	o.Batch /= 2

	o.Batches = 3
	o.Picture = file("picture")
	e, err := Evaluate(context.Background(), d, drawn.Weights, 0, o)
	require.NoError(t, err)
	require.Equal(t, n*s.Targets, e.Targets)
	require.True(t, e.Own != e.Own, "nobody knows the process of a file's tasks")
	for text, want := range map[string]bool{"a task of tasks<": true, ">targets<": true, ">context<": true, ">function<": false} {
		require.Equal(t, want, strings.Contains(read(t, file("picture.svg")), text), text)
	}
}

// TestHeldOut: the last tasks of a file are evaluated and not trained on, and the weights of their
// lowest loss are kept, also by a training that is interrupted and continued. The loss of tasks like
// the training's tasks falls to the end; the loss of tasks with the opposite y rises from the first
// evaluation on.
func TestHeldOut(t *testing.T) {
	d, file := vktest.Open(t), inFolder(t)
	for sign, best := range map[float32]int{1: 13, -1: 4} {
		training := func(name string) (*Options, *tasks) {
			o := options(t, 13)
			o.Batch, o.Batches, o.HeldOut, o.Constant = 2, 1, 2, true
			all := &tasks{n: 4}
			for i := range all.n {
				y := float32(3)
				if i >= 2 {
					y *= sign
				}
				for j := range o.Context + o.Targets {
					token := []float32{float32(j%o.Context) / 8, 0, -1}
					if j < o.Context {
						token[2] = 1
					}
					all.x = append(all.x, token...)
				}
				for range o.Targets {
					all.y = append(all.y, y)
				}
			}
			writeTasks(t, file("tasks"), map[string][]float32{"x": all.x, "y": all.y}, map[string][]int{"x": {4, o.Context + o.Targets, 3}, "y": {4, o.Targets}})
			require.NoError(t, o.ReadTasks(file("tasks")))
			o.Save, o.Best = file(name), file(name+".best")
			return o, all
		}
		o, all := training("whole")
		require.Equal(t, all.y[:2*o.Targets], o.data(3).y, "the first two tasks, again and again")
		held, _, err := o.unseen(0)
		require.NoError(t, err)
		require.Equal(t, all.y[2*o.Targets:], held.y)
		losses := map[int]float64{}
		whole, err := Run(context.Background(), d, o, func(r Row) {
			if !math.IsNaN(r.HeldOut) {
				losses[r.Step] = r.HeldOut
			}
		})
		require.NoError(t, err)
		require.Len(t, losses, 4)
		require.Equal(t, losses[13], whole.Evaluation.Loss)
		for _, step := range []int{4, 8, 12, 13} {
			require.LessOrEqual(t, losses[best], losses[step])
		}
		require.Equal(t, losses[best], whole.Best)
		e, err := Evaluate(context.Background(), d, o.Best, 0, o)
		require.NoError(t, err)
		require.Equal(t, losses[best], e.Loss, "the file has those weights")

		for i := range 3 {
			part, _ := training("part")
			if i > 0 {
				part.Load = part.Save
			}
			ctx, cancel := context.WithCancel(context.Background())
			_, err := Run(ctx, d, part, func(r Row) {
				if r.Step == 5*(i+1) {
					cancel()
				}
			})
			if cancel(); i < 2 {
				require.ErrorIs(t, err, context.Canceled)
			} else {
				require.NoError(t, err)
			}
		}
		require.Equal(t, read(t, file("whole")), read(t, file("part")))
		require.Equal(t, read(t, file("whole.best")), read(t, file("part.best")))
	}
}
