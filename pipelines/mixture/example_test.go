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
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// The outputs of silu(0) = 0 are 0: both heads are the standard normal distribution.
func ExampleForward() {
	d, err := vk.Open(vk.Options{}) // the best device there is
	check(err)
	defer d.Close()
	p := mixture.Problem{Tokens: 2, Heads: 2, In: 1, Hidden: 1} // float32
	t := mixture.Tensors{
		X: tensor(d, "x", p.XShape(), 1, 2), W1: tensor(d, "w1", p.W1Shape(), 0, 0), W2: tensor(d, "w2", p.W2Shape(), 1, 2, 3, 4, 5, 6),
		Y: tensor(d, "y", []int{2}, 0, 1), LogP: tensor(d, "log_p", []int{2}),
	}
	for _, x := range []vk.Tensor{t.X, t.W1, t.W2, t.Y, t.LogP} {
		defer x.Close()
	}
	check(d.Run(context.Background(), "example", func(c *vk.Cmd) error {
		return mixture.Forward(c, t, p, mixture.Options{})
	}))
	show("%.4f", t.LogP)
	// Output: [-0.9189 -1.4189]
}

// One normal distribution has mean 0 and deviation 1, and y is 2. The hidden unit is 20. The
// gradients by W2 are 20 times 0, -(y - mu) and 1 - (y - mu)²: they pull the mean to y and the
// deviation up. Backward reads nothing that Forward writes.
func ExampleBackward() {
	d, err := vk.Open(vk.Options{})
	check(err)
	defer d.Close()
	p := mixture.Problem{Tokens: 1, Heads: 1, In: 1, Hidden: 1}
	t := mixture.Tensors{
		X: tensor(d, "x", p.XShape(), 1), W1: tensor(d, "w1", p.W1Shape(), 20), W2: tensor(d, "w2", p.W2Shape(), 0, 0, 0),
		Y: tensor(d, "y", []int{1}, 2),
	}
	g := mixture.Gradients{DX: tensor(d, "dx", p.XShape()), DW1: tensor(d, "dw1", p.W1Shape()), DW2: tensor(d, "dw2", p.W2Shape())}
	for _, x := range []vk.Tensor{t.X, t.W1, t.W2, t.Y, g.DX, g.DW1, g.DW2} {
		defer x.Close()
	}
	check(d.Run(context.Background(), "example", func(c *vk.Cmd) error {
		return mixture.Backward(c, t, g, p, mixture.Options{})
	}))
	show("%.4g", g.DW2)
	// Output: [0 -40 -60]
}

// On a device without matrices the outputs of heads are in memory in both passes.
func ExampleChoose() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		SubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64},
		MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 1 << 30, MaxStorageBuffers: 16, MaxPushConstantsBytes: 256,
		ScalarBlockLayout: true,
	}
	p := mixture.Problem{Tokens: 100, Heads: 2, In: 16, Hidden: 60, DType: dtype.Float32}
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		fmt.Println(mixture.Supports(caps, p, pass, mixture.Options{}))
		plan, err := mixture.Choose(caps, p, pass, mixture.Options{})
		check(err)
		bytes, err := mixture.Workspace(caps, p, pass, mixture.Options{})
		fmt.Println(plan.Kernels(), bytes, err)
	}
	// Output:
	// <nil>
	// [gemm_scalar gemm_scalar gmm_fwd] 50688 <nil>
	// <nil>
	// [gemm_pack gemm_scalar gemm_scalar gmm_bwd gemm_scalar gemm_scalar gemm_scalar gemm_scalar] 112896 <nil>
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
