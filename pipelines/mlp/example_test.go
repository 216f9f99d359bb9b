package mlp_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

func TestMain(m *testing.M) { vktest.Main(m) }

func ExampleForward() {
	d, err := vk.Open(vk.Options{}) // the best device there is
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()

	p := mlp.Problem{Tokens: 2, In: 1, Hidden: 2, Out: 1} // float32
	tensor := func(name string, shape []int, values ...float32) vk.Tensor {
		t, err := d.NewTensor(name, p.DType, shape...)
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
	x, w1, w2 := tensor("x", p.XShape(), 0, 1), tensor("w1", p.W1Shape(), 1, -1), tensor("w2", p.W2Shape(), 1, -1)
	y := tensor("y", p.YShape())
	for _, t := range []vk.Tensor{x, w1, w2, y} {
		defer t.Close()
	}

	c, err := d.NewCmd("example")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := mlp.Forward(c, y, x, w1, w2, p, mlp.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	result := make([]float32, p.Tokens)
	if err := y.Download(ctx, result); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.4f\n", result) // silu(1) - silu(-1) = 1
	// Output: [0.0000 1.0000]
}
