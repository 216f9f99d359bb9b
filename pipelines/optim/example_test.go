package optim_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/optim"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// The first step moves every parameter by the learning rate against the sign of its
// gradient, whatever that is, and takes off the weight decay. The recorded step is
// submitted twice.
func ExampleAdamW() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()
	tensor := func(name string, data ...float32) vk.Tensor {
		t, err := d.NewTensor(name, dtype.Float32, len(data))
		if err == nil {
			err = t.Upload(ctx, data)
		}
		if err != nil {
			log.Fatal(err)
		}
		return t
	}
	w := optim.Param{
		Name: "w", Param: tensor("w", 1, 2), Grad: tensor("grad", 5, -0.25),
		M: tensor("m", 0, 0), V: tensor("v", 0, 0),
	}
	for _, t := range []vk.Tensor{w.Param, w.Grad, w.M, w.V} {
		defer t.Close()
	}
	adamw, err := optim.New(ctx, d, []optim.Param{w}, optim.Default())
	if err != nil {
		log.Fatal(err)
	}
	defer adamw.Close()
	if err := adamw.SetLR(ctx, 0.1); err != nil {
		log.Fatal(err)
	}
	c, err := d.NewCmd("step")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := adamw.Step(c); err != nil {
		log.Fatal(err)
	}
	got := make([]float32, 2)
	for range 2 {
		if err := c.Submit(ctx); err != nil {
			log.Fatal(err)
		}
		if err := w.Param.Download(ctx, got); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%.3f\n", got)
	}
	// Output:
	// [0.899 2.098]
	// [0.798 2.196]
}
