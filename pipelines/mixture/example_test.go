package mixture_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

func ExampleForward() {
	d, err := vk.Open(vk.Options{}) // the best device there is
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()

	p := mixture.Problem{Tokens: 2, Heads: 2, In: 1, Hidden: 1} // float32
	tensor := func(name string, shape []int, values ...float32) vk.Tensor {
		t, err := d.NewTensor(name, dtype.Float32, shape...)
		if err != nil {
			log.Fatal(err)
		}
		if values != nil {
			if err := t.Upload(ctx, values); err != nil {
				log.Fatal(err)
			}
		}
		return t
	}
	t := mixture.Tensors{
		X: tensor("x", p.XShape(), 1, 2), W1: tensor("w1", p.W1Shape(), 0, 0), W2: tensor("w2", p.W2Shape(), 1, 2, 3, 4, 5, 6),
		Y: tensor("y", []int{2}, 0, 1), LogP: tensor("log_p", []int{2}),
	}
	for _, x := range []vk.Tensor{t.X, t.W1, t.W2, t.Y, t.LogP} {
		defer x.Close()
	}

	c, err := d.NewCmd("example")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := mixture.Forward(c, t, p, mixture.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	result := make([]float32, 2)
	if err := t.LogP.Download(ctx, result); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.4f\n", result) // silu(0) is 0: both heads are the standard normal distribution
	// Output: [-0.9189 -1.4189]
}

// One normal distribution has mean 0 and deviation 1, and y is 2. The hidden unit is 20. The
// gradients by W2 pull the mean to y and the deviation up.
func ExampleBackward() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()
	p := mixture.Problem{Tokens: 1, Heads: 1, In: 1, Hidden: 1} // float32
	tensor := func(name string, shape []int, values ...float32) vk.Tensor {
		t, err := d.NewTensor(name, dtype.Float32, shape...)
		if err == nil && values != nil {
			err = t.Upload(ctx, values)
		}
		if err != nil {
			log.Fatal(err)
		}
		return t
	}
	t := mixture.Tensors{
		X: tensor("x", p.XShape(), 1), W1: tensor("w1", p.W1Shape(), 20), W2: tensor("w2", p.W2Shape(), 0, 0, 0),
		Y: tensor("y", []int{1}, 2),
	}
	g := mixture.Gradients{DX: tensor("dx", p.XShape()), DW1: tensor("dw1", p.W1Shape()), DW2: tensor("dw2", p.W2Shape())}
	for _, x := range []vk.Tensor{t.X, t.W1, t.W2, t.Y, g.DX, g.DW1, g.DW2} {
		defer x.Close()
	}
	c, err := d.NewCmd("example")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := mixture.Backward(c, t, g, p, mixture.Options{}); err != nil { // reads nothing that Forward writes
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	got := make([]float32, 3)
	if err := g.DW2.Download(ctx, got); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.4g\n", got) // 20 times 0, -(y - mu) and 1 - (y - mu)²
	// Output: [0 -40 -60]
}
