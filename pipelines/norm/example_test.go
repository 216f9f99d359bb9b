package norm_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// A row of two elements becomes their distance from the mean in deviations.
func ExampleForward() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()
	p := norm.Problem{Rows: 1, Cols: 2, DType: dtype.Float32}
	x, y, w := tensor(d, "x", 1, 2), tensor(d, "y", 1, 2), tensor(d, "w", 2)
	defer x.Close()
	defer y.Close()
	defer w.Close()
	if err := x.Upload(ctx, []float32{3, 5}); err != nil {
		log.Fatal(err)
	}
	if err := w.Upload(ctx, []float32{1, 10}); err != nil {
		log.Fatal(err)
	}
	c, err := d.NewCmd("norm")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	none := vk.Tensor{} // neither a residual nor statistics
	if err := norm.Forward(c, y, none, none, none, x, none, w, p, norm.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	got := make([]float32, 2)
	if err := y.Download(ctx, got); err != nil {
		log.Fatal(err)
	}
	fmt.Println(got)
	// Output: [-1 10]
}

func tensor(d *vk.Device, name string, shape ...int) vk.Tensor {
	t, err := d.NewTensor(name, dtype.Float32, shape...)
	if err != nil {
		log.Fatal(err)
	}
	return t
}
