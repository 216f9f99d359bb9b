package xent_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/xent"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// labels returns a tensor of labels.
func labels(e *vktest.Example, values ...int32) vk.Tensor {
	t := e.Tensor(dtype.Int32, []int{len(values)})
	vktest.Must(t.UploadInts(context.Background(), values))
	return t
}

// Two words with the same logit share the probability. The second token is ignored.
func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := xent.Problem{Tokens: 2, Vocabulary: 2, Dim: 1} // float32
	t := xent.Tensors{
		H: e.Float32([]int{2, 1}, 3, 1), W: e.Float32([]int{2, 1}, 1, 1), Labels: labels(e, 0, -100),
		Losses: e.Float32([]int{2}), Loss: e.Float32([]int{1}),
	}
	e.Run(func(c *vk.Cmd) error { return xent.Forward(c, t, p, xent.Options{}) })
	fmt.Printf("%.4f %.4f\n", e.Values(t.Losses), e.Values(t.Loss))
	// Output: [0.6931 0.0000] [0.6931]
}

// The logits are given, and their gradient takes their place: probabilities, less 1 for the label.
func ExampleBackward() {
	e := vktest.NewExample()
	defer e.Close()
	p := xent.Problem{Tokens: 1, Vocabulary: 4}
	t := xent.Tensors{Logits: e.Float32([]int{1, 4}, 5, 5, 5, 5), Labels: labels(e, 2), Loss: e.Float32([]int{1})}
	e.Run(func(c *vk.Cmd) error { return xent.Backward(c, t, xent.Gradients{}, p, xent.Options{}) })
	fmt.Printf("%.4f %.4f\n", e.Values(t.Loss), e.Values(t.Logits))
	// Output: [1.3863] [0.2500 0.2500 -0.7500 0.2500]
}

// The memory of a call does not grow with the tokens but for 4 bytes each: it has the logits of a chunk.
func ExampleChoose() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		SubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64},
		MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 1 << 30, MaxStorageBuffers: 16, MaxPushConstantsBytes: 256,
		ScalarBlockLayout: true, Storage16: true,
	}
	p := xent.Problem{Tokens: 4096, Vocabulary: 49152, Dim: 576, DType: dtype.Float16}
	o := xent.Options{Memory: 64 << 20}
	fmt.Println(xent.Supports(caps, p, kit.Backward, o))
	plan, err := xent.Choose(caps, p, kit.Backward, o)
	fmt.Println(plan.Tokens, plan.Rows, plan.Kernels(), err)
	bytes, err := xent.Workspace(caps, p, kit.Backward, o)
	fmt.Println(bytes>>20, "MiB", err)
	// Output:
	// <nil>
	// 320 49152 [xent_total gemm_scalar xent_rows] <nil>
	// 60 MiB <nil>
}
