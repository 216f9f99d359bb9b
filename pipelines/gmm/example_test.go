package gmm_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// One token has a mixture of two normal distributions around -1 and 1, and y is in the middle.
// Both have the same share in its probability, and the gradients pull both means to y. Backward
// reads nothing that Forward wrote.
func Example() {
	d, err := vk.Open(vk.Options{})
	check(err)
	defer d.Close()
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
	check(d.Run(context.Background(), "gmm", func(c *vk.Cmd) error {
		if err := gmm.Forward(c, t, p, gmm.Options{}); err != nil {
			return err
		}
		return gmm.Backward(c, t, g, p, gmm.Options{})
	}))
	show("%.4f ", t.Loss, g.DMu)
	// Output: [1.4189] [-0.5000 0.5000]
}

// A plan says what would run and the memory that it takes beside the tensors. An error says why a
// device lacks a format.
func ExampleChoose() {
	caps := &vk.Caps{ // of a device with plain Vulkan 1.2
		SubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64},
		MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 1 << 30, MaxStorageBuffers: 16, MaxPushConstantsBytes: 128,
		ScalarBlockLayout: true,
	}
	p := gmm.Problem{Tokens: 16000, Components: 10}
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		plan, err := gmm.Choose(caps, p, pass, gmm.Options{})
		check(err)
		bytes, err := gmm.Workspace(caps, p, pass, gmm.Options{})
		fmt.Println(plan.Kernels(), bytes, err)
	}
	p.DType = dtype.Float16
	err := gmm.Supports(caps, p, kit.Forward, gmm.Options{})
	fmt.Println(err, errors.Is(err, vk.ErrUnsupported))
	// Output:
	// [gmm_fwd] 4000 <nil>
	// [gmm_bwd] 0 <nil>
	// gmm: the device has no 16-bit storage: unsupported on this device true
}

// What one product made of all heads is taken apart without a copy.
func ExampleInterleaved() {
	x := vk.Tensor{DType: dtype.Float32, Shape: []int{100, 10, 3}, Strides: []int{30, 3, 1}}
	logit, mu, logSigma := gmm.Interleaved(x)
	fmt.Println(logit.Shape, logit.Strides, logit.Offset, mu.Offset, logSigma.Offset)
	// Output: [100 10] [30 3] 0 1 2
}

// check ends the program with an error.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// tensor returns a float32 tensor with these values, or with none.
func tensor(d *vk.Device, name string, shape []int, values ...float32) vk.Tensor {
	t, err := d.NewTensor(name, dtype.Float32, shape...)
	if check(err); values != nil {
		check(t.Upload(context.Background(), values))
	}
	return t
}

// show prints the values of tensors.
func show(format string, tensors ...vk.Tensor) {
	for _, t := range tensors {
		got := make([]float32, t.NumElements())
		check(t.Download(context.Background(), got))
		fmt.Printf(format, got)
	}
	fmt.Println()
}
