package train

import (
	"context"
	"math"
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

// TestTasks: the tasks that a training would draw, and the weights that it would start with, make the
// same training of a file each; an evaluation of the tasks has the losses of those.
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
	o.CSV, o.Start, o.Curve, o.Beside = file("read.csv"), file("start"), file("curve"), Beside{"drawn", drawn.CSV}
	require.NoError(t, o.ReadTasks(file("tasks")))
	require.NoError(t, o.ReadFile(false, 0))
	require.Equal(t, drawn.Shape, o.Shape)
	require.Equal(t, drawn.Config, o.Config)
	_, err = Run(context.Background(), d, o, nothing)
	require.NoError(t, err)
	require.Equal(t, columns(t, drawn.CSV), columns(t, o.CSV))

	require.Contains(t, read(t, file("curve.svg")), "drawn, mean of 1")

	// After the last task comes the first.
	require.Equal(t, o.data(0), o.data(3))
	o.Batch = 2 * o.Batch
	require.Equal(t, append(append([]float32{}, drawn.data(2).y...), drawn.data(0).y...), o.data(1).y)
	o.Batch /= 2

	o.Batches = 3
	e, err := Evaluate(context.Background(), d, drawn.Weights, 0, o, "")
	require.NoError(t, err)
	require.Equal(t, n*s.Targets, e.Targets)
	require.True(t, e.Own != e.Own, "nobody knows the process of a file's tasks")
	_, err = Evaluate(context.Background(), d, drawn.Weights, 0, o, file("picture"))
	require.ErrorIs(t, err, errTasks)
}

// TestTasksErrors: what is no file of tasks is refused.
func TestTasksErrors(t *testing.T) {
	file := inFolder(t)
	floats := func(n int) []float32 { return make([]float32, n) }
	for _, c := range []struct {
		x, y []int
		want string
	}{
		{[]int{2, 3}, []int{2, 3}, `: tensor "x" has shape [2 3], want 3 axes`},
		{[]int{2, 3, 3}, []int{6}, `: tensor "y" has shape [6], want 2 axes`},
		{[]int{2, 3, 3}, []int{3, 2}, ": x has 2 tasks, y 3"},
		{[]int{2, 3, 3}, []int{2, 3}, ": tasks of 3 tokens, 3 of them targets: there must be context and targets"},
		{[]int{0, 3, 3}, []int{0, 2}, ": there is no task"},
	} {
		size := func(shape []int) int {
			n := 1
			for _, d := range shape {
				n *= d
			}
			return n
		}
		writeTasks(t, file("tasks"), map[string][]float32{"x": floats(size(c.x)), "y": floats(size(c.y))}, map[string][]int{"x": c.x, "y": c.y})
		require.EqualError(t, options(t, 1).ReadTasks(file("tasks")), file("tasks")+c.want)
	}
	for name, i := range map[string]int{"x[1 2 0]": 15, "y[1 0]": 2} {
		values := map[string][]float32{"x": floats(18), "y": floats(4)}
		values[name[:1]][i] = float32(math.NaN())
		writeTasks(t, file("tasks"), values, map[string][]int{"x": {2, 3, 3}, "y": {2, 2}})
		require.EqualError(t, options(t, 1).ReadTasks(file("tasks")), file("tasks")+": "+name+" is NaN: data must be finite")
	}
	writeTasks(t, file("tasks"), map[string][]float32{"x": floats(18)}, map[string][]int{"x": {2, 3, 3}})
	require.EqualError(t, options(t, 1).ReadTasks(file("tasks")), file("tasks")+`: tensor "y" is missing`)
	require.ErrorContains(t, options(t, 1).ReadTasks(file("none")), "no such file")
	o := options(t, 10)
	o.Beside.Path = "x"
	require.EqualError(t, o.Validate(), "train: another log is to be drawn beside, but there is no curve")
	o.Curve, o.Beside.Path = "x", file("none")
	_, err := Run(context.Background(), nil, o, nothing)
	require.ErrorContains(t, err, "no such file")
	o.Beside.Path = file("tasks")
	_, err = Run(context.Background(), nil, o, nothing)
	require.ErrorContains(t, err, file("tasks")+": ", "a file that is no log, before the first step")
	o.Beside, o.Curve = Beside{}, file("none/curve")
	_, err = Run(context.Background(), nil, o, nothing)
	require.ErrorContains(t, err, "none/curve.png: no such file or directory", "before the first step")
	o.Load, o.Start = "a", "b"
	require.EqualError(t, o.Validate(), "train: load continues a training, start begins one: there may be one of them")
}
