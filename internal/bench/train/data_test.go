package train

import (
	"context"
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
