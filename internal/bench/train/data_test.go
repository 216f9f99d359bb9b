package train

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/safetensors/filetest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/tnp"
	"github.com/flashvk/flashvk/safetensors"
)

// TestTasks wants a training from a file of tasks and a file of start weights to equal the training
// that draws the same tasks and weights itself.
func TestTasks(t *testing.T) {
	d := vktest.Open(t)
	file := inFolder(t)
	drawn := options(t, 3)
	drawn.CSV = file("drawn.csv")
	_, err := Run(context.Background(), d, drawn, nothing)
	require.NoError(t, err)

	x, y := []float32{}, []float32{}
	for i := range 3 {
		b := drawn.data(uint64(i))
		x, y = append(x, b.x...), append(y, b.y...)
	}
	n, s := 3*drawn.Batch, drawn.Shape
	list := []safetensors.Tensor{filetest.F32("x", n, s.Context+s.Targets, 3), filetest.F32("y", n, s.Targets)}
	filetest.Write(t, file("tasks"), list, map[string][]float32{"x": x, "y": y})
	w, err := tnp.Init(drawn.Config, drawn.Seed)
	require.NoError(t, err)
	require.NoError(t, tnp.Save(file("start"), w, drawn.Config))

	o := options(t, 3)
	o.Seed, o.Context, o.Targets, o.Config = 77, 1, 1, tnp.Config{}
	o.CSV, o.Start = file("read.csv"), file("start")
	require.NoError(t, o.ReadTasks(file("tasks")))
	require.NoError(t, o.ReadFile(false, 0))
	require.Equal(t, drawn.Shape, o.Shape)
	require.Equal(t, drawn.Config, o.Config)
	_, err = Run(context.Background(), d, o, nothing)
	require.NoError(t, err)
	require.Equal(t, columns(t, drawn.CSV), columns(t, o.CSV))

	// After the last task comes the first.
	require.Equal(t, o.data(0), o.data(3))
	o.Batch = 2 * o.Batch
	require.Equal(t, append(append([]float32{}, drawn.data(2).y...), drawn.data(0).y...), o.data(1).y)
}
