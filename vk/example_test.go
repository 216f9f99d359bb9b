package vk_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// The kernel axpy.comp computes y = a*x + y.
func Example() {
	d, err := vk.Open(vk.Options{}) // the best device there is
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()

	x, err := d.NewTensor("x", dtype.Float32, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	if err := x.Upload(ctx, []float32{1, 2, 3}); err != nil {
		log.Fatal(err)
	}
	y, err := d.NewTensor("y", dtype.Float32, 3)
	if err != nil {
		log.Fatal(err)
	}
	defer y.Close()
	if err := y.Upload(ctx, []float32{10, 20, 30}); err != nil {
		log.Fatal(err)
	}

	k, err := vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	if err != nil {
		log.Fatal(err)
	}
	c, err := d.NewCmd("axpy")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	k.Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 3, A: 2}, x, y)
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}

	out := make([]float32, 3)
	if err := y.Download(ctx, out); err != nil {
		log.Fatal(err)
	}
	fmt.Println(out)
	// Output: [12 24 36]
}
