package norm_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
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
	if err := norm.Forward(c, norm.Tensors{X: x, W: w, Y: y}, p, norm.Options{}); err != nil {
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

// The loss is the first element of y. Moving both elements of x alike changes nothing, so the
// elements of dx add up to 0. Two elements have a y of ±1 whatever their distance, so both are 0
// but for eps.
func ExampleBackward() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()
	p := norm.Problem{Rows: 1, Cols: 2, DType: dtype.Float32, Eps: 3}
	t := norm.Tensors{
		X: tensor(d, "x", 1, 2), W: tensor(d, "w", 2), Y: tensor(d, "y", 1, 2),
		Mean: tensor(d, "mean", 1), RStd: tensor(d, "rstd", 1),
	}
	g := norm.Gradients{DY: tensor(d, "dy", 1, 2), DX: tensor(d, "dx", 1, 2), DW: tensor(d, "dw", 2)}
	for _, x := range []vk.Tensor{t.X, t.W, t.Y, t.Mean, t.RStd, g.DY, g.DX, g.DW} {
		defer x.Close()
	}
	for _, in := range []struct {
		t    vk.Tensor
		data []float32
	}{{t.X, []float32{3, 5}}, {t.W, []float32{1, 1}}, {g.DY, []float32{1, 0}}} {
		if err := in.t.Upload(ctx, in.data); err != nil {
			log.Fatal(err)
		}
	}
	c, err := d.NewCmd("norm")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := norm.Forward(c, t, p, norm.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := norm.Backward(c, t, g, p, norm.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	dx, dw := make([]float32, 2), make([]float32, 2)
	if err := g.DX.Download(ctx, dx); err != nil {
		log.Fatal(err)
	}
	if err := g.DW.Download(ctx, dw); err != nil {
		log.Fatal(err)
	}
	fmt.Println(dx, dw)
	// Output: [0.1875 -0.1875] [-0.5 0]
}
