package mixture_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/mixture"
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
	x, w1, w2 := tensor("x", p.XShape(), 1, 2), tensor("w1", p.W1Shape(), 0, 0), tensor("w2", p.W2Shape(), 1, 2, 3, 4, 5, 6)
	y, logP, loss := tensor("y", []int{2}, 0, 1), tensor("log_p", []int{2}), tensor("loss", []int{1})
	for _, t := range []vk.Tensor{x, w1, w2, y, logP, loss} {
		defer t.Close()
	}

	c, err := d.NewCmd("example")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := mixture.Forward(c, logP, loss, x, w1, w2, y, p, mixture.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	result := make([]float32, 2)
	if err := logP.Download(ctx, result); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%.4f\n", result) // silu(0) is 0: both heads are the standard normal distribution
	// Output: [-0.9189 -1.4189]
}
