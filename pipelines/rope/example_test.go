package rope_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/rope"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

func ints(e *vktest.Example, values ...int32) vk.Tensor {
	t := e.Tensor(dtype.Int32, []int{len(values)})
	vktest.Must(t.UploadInts(context.Background(), values))
	return t
}

// Queries and keys at positions 0 and 3 are turned where they lie: those at 3 by 3 radians.
func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := rope.Problem{Batch: 1, Seq: 2, Heads: 1, KVHeads: 1, HeadDim: 3, Frequencies: attention.Frequencies{Dims: 2}, InPlace: true}
	t := rope.Tensors{
		Q: e.Float32([]int{1, 1, 2, 3}, 1, 0, 7, 1, 0, 7), K: e.Float32([]int{1, 1, 2, 3}, 0, 1, 7, 0, 1, 7),
		Positions: ints(e, 0, 3), Turns: ints(e, rope.Words(p.Frequencies)...),
	}
	e.Run(func(c *vk.Cmd) error { return rope.Forward(c, t, p, rope.Options{}) })
	fmt.Printf("%.3f %.3f\n", e.Values(t.Q), e.Values(t.K))
	// Output: [1.000 0.000 7.000 -0.990 0.141 7.000] [0.000 1.000 7.000 -0.141 -0.990 7.000]
}

// The gradient is turned back.
func ExampleBackward() {
	e := vktest.NewExample()
	defer e.Close()
	p := rope.Problem{Batch: 1, Seq: 1, Heads: 1, HeadDim: 2, Frequencies: attention.Frequencies{Dims: 2}}
	t := rope.Tensors{Positions: ints(e, 3), Turns: ints(e, rope.Words(p.Frequencies)...)}
	g := rope.Gradients{DQOut: e.Float32([]int{1, 1, 1, 2}, 1, 0), DQ: e.Float32([]int{1, 1, 1, 2})}
	e.Run(func(c *vk.Cmd) error { return rope.Backward(c, t, g, p, rope.Options{}) })
	fmt.Printf("%.3f\n", e.Values(g.DQ))
	// Output: [-0.990 -0.141]
}

// A plan says what would run.
func ExampleChoose() {
	caps := &vk.Caps{ScalarBlockLayout: true, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}} // plain Vulkan 1.2
	scaling, err := attention.ParseScaling("llama3")
	p := rope.Problem{Batch: 1, Seq: 2048, Heads: 32, KVHeads: 8, HeadDim: 64, Frequencies: attention.Frequencies{
		Dims: 64, Base: 500000, Scaling: scaling, Factor: 32, Original: 8192,
	}}
	fmt.Println(err, rope.Supports(caps, p, kit.Forward, rope.Options{}))
	plan, err := rope.Choose(caps, p, kit.Forward, rope.Options{})
	vktest.Must(err)
	bytes, err := rope.Workspace(caps, p, kit.Forward, rope.Options{})
	fmt.Println(plan, plan.Kernels(), bytes, err)
	// Output:
	// <nil> <nil>
	// wg128 [rope] 0 <nil>
}
