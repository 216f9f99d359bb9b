package gmm_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

func tensor(d *vk.Device, name string, shape []int, data ...float32) vk.Tensor {
	t, err := d.NewTensor(name, dtype.Float32, shape...)
	if err == nil && data != nil {
		err = t.Upload(context.Background(), data)
	}
	if err != nil {
		log.Fatal(err)
	}
	return t
}

// One token has a mixture of two normal distributions around -1 and 1, and y is in the middle.
// Both have the same share in its probability, and the gradients pull both means to y.
func Example() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()
	p := gmm.Problem{Tokens: 1, Components: 2, DType: dtype.Float32, Grad: dtype.Some(dtype.Float32)}
	shape := []int{1, 2}
	t := gmm.Tensors{
		Logit: tensor(d, "logit", shape, 0, 0), Mu: tensor(d, "mu", shape, -1, 1), LogSigma: tensor(d, "log_sigma", shape, 0, 0),
		Y: tensor(d, "y", []int{1}, 0), Loss: tensor(d, "loss", []int{1}),
	}
	g := gmm.Gradients{DLogit: tensor(d, "dlogit", shape), DMu: tensor(d, "dmu", shape), DLogSigma: tensor(d, "dlog_sigma", shape)}
	for _, x := range []vk.Tensor{t.Logit, t.Mu, t.LogSigma, t.Y, t.Loss, g.DLogit, g.DMu, g.DLogSigma} {
		defer x.Close()
	}
	c, err := d.NewCmd("gmm")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	if err := gmm.Forward(c, t, p, gmm.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := gmm.Backward(c, t, g, p, gmm.Options{}); err != nil { // reads nothing that Forward wrote
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	for _, x := range []vk.Tensor{t.Loss, g.DMu} {
		got := make([]float32, x.NumElements())
		if err := x.Download(ctx, got); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%.4f\n", got)
	}
	// Output:
	// [1.4189]
	// [-0.5000 0.5000]
}
