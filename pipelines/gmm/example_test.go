package gmm_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
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

// One token, whose mixture has two normal distributions around -1 and 1; y is in the middle.
// So both have the same part in its probability, and the gradients pull both means to y.
func Example() {
	d, err := vk.Open(vk.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	ctx := context.Background()
	p := gmm.Problem{Tokens: 1, Components: 2, DType: dtype.Float32, Grad: dtype.Float32}
	shape := []int{1, 2}
	in := gmm.Mixtures{
		Logit: tensor(d, "logit", shape, 0, 0), Mu: tensor(d, "mu", shape, -1, 1), LogSigma: tensor(d, "log_sigma", shape, 0, 0),
	}
	grad := gmm.Mixtures{Logit: tensor(d, "dlogit", shape), Mu: tensor(d, "dmu", shape), LogSigma: tensor(d, "dlog_sigma", shape)}
	y, loss := tensor(d, "y", []int{1}, 0), tensor(d, "loss", []int{1})
	for _, t := range []vk.Tensor{in.Logit, in.Mu, in.LogSigma, grad.Logit, grad.Mu, grad.LogSigma, y, loss} {
		defer t.Close()
	}
	c, err := d.NewCmd("gmm")
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	none := vk.Tensor{} // neither log_p nor a gradient of the loss other than 1
	if err := gmm.Forward(c, none, loss, in, y, p, gmm.Options{}); err != nil {
		log.Fatal(err)
	}
	if err := gmm.Backward(c, grad, none, in, y, p, gmm.Options{}); err != nil { // reads nothing that Forward wrote
		log.Fatal(err)
	}
	if err := c.Submit(ctx); err != nil {
		log.Fatal(err)
	}
	for _, t := range []vk.Tensor{loss, grad.Mu} {
		got := make([]float32, t.NumElements())
		if err := t.Download(ctx, got); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%.4f\n", got)
	}
	// Output:
	// [1.4189]
	// [-0.5000 0.5000]
}
