package gmm_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// One token has a mixture of two normal distributions around -1 and 1, and y is in the middle.
// Both have the same share in its probability, and the gradients pull both means to y.
func Example() {
	e := vktest.NewExample()
	defer e.Close()
	p, shape := gmm.Problem{Tokens: 1, Components: 2}, []int{1, 2} // float32
	t := gmm.Tensors{
		Logit: e.Float32(shape, 0, 0), Mu: e.Float32(shape, -1, 1), LogSigma: e.Float32(shape, 0, 0),
		Y: e.Float32([]int{1}, 0), Loss: e.Float32([]int{1}),
	}
	g := gmm.Gradients{DLogit: e.Float32(shape), DMu: e.Float32(shape), DLogSigma: e.Float32(shape)}
	e.Run(func(c *vk.Cmd) error {
		if err := gmm.Forward(c, t, p, gmm.Options{}); err != nil {
			return err
		}
		return gmm.Backward(c, t, g, p, gmm.Options{}) // reads nothing that Forward wrote
	})
	fmt.Printf("%.4f %.4f\n", e.Values(t.Loss), e.Values(g.DMu))
	// Output: [1.4189] [-0.5000 0.5000]
}

// A plan says what would run and the memory that it takes beside the tensors. An error says why a
// device lacks a format.
func ExampleChoose() {
	caps := &vk.Caps{ // of a device with plain Vulkan 1.2
		SubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64},
		MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 1 << 30, MaxStorageBuffers: 16, MaxPushConstantsBytes: 128,
		ScalarBlockLayout: true, Storage16: true,
	}
	p := gmm.Problem{Tokens: 16000, Components: 10}
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		plan, err := gmm.Choose(caps, p, pass, gmm.Options{})
		vktest.Must(err)
		bytes, err := gmm.Workspace(caps, p, pass, gmm.Options{})
		fmt.Println(plan.Kernels(), bytes, err)
	}
	caps.Storage16, p.Grad = false, dtype.Some(dtype.BFloat16)
	err := gmm.Supports(caps, p, kit.Backward, gmm.Options{})
	fmt.Println(err, errors.Is(err, vk.ErrUnsupported))
	// Output:
	// [gmm_fwd] 4000 <nil>
	// [gmm_bwd] 0 <nil>
	// gmm: bfloat16 needs 16-bit storage: unsupported on this device true
}

// What one product made of all heads is taken apart without a copy.
func ExampleInterleaved() {
	x := vk.Tensor{DType: dtype.Float32, Shape: []int{100, 10, 3}, Strides: []int{30, 3, 1}}
	logit, mu, logSigma := gmm.Interleaved(x)
	fmt.Println(logit.Shape, logit.Strides, logit.Offset, mu.Offset, logSigma.Offset)
	// Output: [100 10] [30 3] 0 1 2
}
