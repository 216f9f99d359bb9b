package mixture_test

import (
	"fmt"
	"testing"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := mixture.Problem{Tokens: 2, Heads: 2, In: 1, Hidden: 1} // float32
	t := mixture.Tensors{
		X: e.Float32(p.XShape(), 1, 2), W1: e.Float32(p.W1Shape(), 0, 0), W2: e.Float32(p.W2Shape(), 1, 2, 3, 4, 5, 6),
		Y: e.Float32([]int{2}, 0, 1), LogP: e.Float32([]int{2}),
	}
	e.Run(func(c *vk.Cmd) error { return mixture.Forward(c, t, p, mixture.Options{}) })
	fmt.Printf("%.4f\n", e.Values(t.LogP)) // silu(0) is 0: both heads are the standard normal distribution
	// Output: [-0.9189 -1.4189]
}

// One normal distribution has mean 0 and deviation 1, and y is 2. The hidden unit is 20. The
// gradients by W2 pull the mean to y and the deviation up.
func ExampleBackward() {
	e := vktest.NewExample()
	defer e.Close()
	p := mixture.Problem{Tokens: 1, Heads: 1, In: 1, Hidden: 1} // float32
	t := mixture.Tensors{
		X: e.Float32(p.XShape(), 1), W1: e.Float32(p.W1Shape(), 20), W2: e.Float32(p.W2Shape(), 0, 0, 0),
		Y: e.Float32([]int{1}, 2),
	}
	g := mixture.Gradients{DX: e.Float32(p.XShape()), DW1: e.Float32(p.W1Shape()), DW2: e.Float32(p.W2Shape())}
	e.Run(func(c *vk.Cmd) error { return mixture.Backward(c, t, g, p, mixture.Options{}) }) // reads nothing that Forward writes
	fmt.Printf("%.4g\n", e.Values(g.DW2))                                                   // 20 times 0, -(y - mu) and 1 - (y - mu)²
	// Output: [0 -40 -60]
}

// On a device without matrices the outputs of heads are in memory in both passes.
func ExampleChoose() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		SubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64},
		MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 1 << 30, MaxStorageBuffers: 16, MaxPushConstantsBytes: 256,
		ScalarBlockLayout: true, Storage16: true,
	}
	p := mixture.Problem{Tokens: 100, Heads: 2, In: 16, Hidden: 60}
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		fmt.Println(mixture.Supports(caps, p, pass, mixture.Options{}))
		plan, err := mixture.Choose(caps, p, pass, mixture.Options{})
		vktest.Must(err)
		bytes, err := mixture.Workspace(caps, p, pass, mixture.Options{})
		fmt.Println(plan.Kernels(), bytes, err)
	}
	// Output:
	// <nil>
	// [gemm_scalar gemm_scalar gmm_fwd] 50688 <nil>
	// <nil>
	// [gemm_align gemm_scalar gemm_scalar gmm_bwd gemm_scalar gemm_scalar gemm_scalar gemm_scalar] 112896 <nil>
}
