package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/safetensors"
)

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
