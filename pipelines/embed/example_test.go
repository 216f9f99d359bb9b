package embed_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/embed"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// ints returns a tensor of integers.
func ints(e *vktest.Example, values ...int32) vk.Tensor {
	t := e.Tensor(dtype.Int32, []int{len(values)})
	vktest.Must(t.UploadInts(context.Background(), values))
	return t
}

// Tokens and positions have a table each; the second call adds its rows to the rows of the first. The
// last token is ignored.
func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := embed.Problem{Tokens: 3, Vocabulary: 4, Dim: 2} // float32
	t := embed.Tensors{IDs: ints(e, 3, 1, -1), Table: e.Float32([]int{4, 2}, 0, 1, 10, 11, 20, 21, 30, 31), Out: e.Float32([]int{3, 2})}
	positions := embed.Tensors{IDs: ints(e, 0, 1, -1), Table: e.Float32([]int{2, 2}, 100, 100, 200, 200), Out: t.Out}
	e.Run(func(c *vk.Cmd) error {
		if err := embed.Forward(c, t, p, embed.Options{}); err != nil {
			return err
		}
		return embed.Forward(c, positions, embed.Problem{Tokens: 3, Vocabulary: 2, Dim: 2, Accumulate: true}, embed.Options{})
	})
	fmt.Println(e.Values(t.Out))
	// Output: [130 131 210 211 0 0]
}

// Two tokens are of row 1. Rows 0 and 2 have none.
func ExampleBackward() {
	e := vktest.NewExample()
	defer e.Close()
	p := embed.Problem{Tokens: 3, Vocabulary: 4, Dim: 2}
	t := embed.Tensors{IDs: ints(e, 1, 3, 1)}
	g := embed.Gradients{DOut: e.Float32([]int{3, 2}, 1, 2, 3, 4, 5, 6), DTable: e.Float32([]int{4, 2})}
	e.Run(func(c *vk.Cmd) error { return embed.Backward(c, t, g, p, embed.Options{}) })
	fmt.Println(e.Values(g.DTable))
	// Output: [0 0 6 8 0 0 3 4]
}

// The memory that Backward takes does not grow with the table. A table that is larger than what a kernel sees
// of a buffer is refused.
func ExampleChoose() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		MaxSharedMemoryBytes: 16384, MaxWorkgroupInvocations: 128, MaxWorkgroupSize: [3]uint32{128, 128, 64},
		MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 128 << 20, ScalarBlockLayout: true, Storage16: true,
	}
	p := embed.Problem{Tokens: 4096, Vocabulary: 32000, Dim: 2048, DType: dtype.BFloat16}
	plan, err := embed.Choose(caps, p, kit.Backward, embed.Options{})
	fmt.Println(plan, plan.Kernels(), err)
	bytes, err := embed.Workspace(caps, p, kit.Backward, embed.Options{})
	fmt.Println(bytes, err)
	p.Vocabulary = 128256
	fmt.Println(embed.Supports(caps, p, kit.Forward, embed.Options{}))
	// Output:
	// blocks of 32 tokens [embed_sort embed_fwd embed_bwd] <nil>
	// 2162688 <nil>
	// embed: table has 525336576 bytes, a kernel sees 134217728 of a buffer: unsupported on this device
}
