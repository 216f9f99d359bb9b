package glu_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// The gates are open, half open and closed: silu(100) is 100, gelu(0) is 0.
func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := glu.Problem{Rows: 1, Cols: 3, DType: dtype.Float32}
	t := glu.Tensors{G: e.Float32([]int{1, 3}, 100, 0, -200), U: e.Float32([]int{1, 3}, 2, 3, 4), Y: e.Float32([]int{1, 3})}
	e.Run(func(c *vk.Cmd) error { return glu.Forward(c, t, p, glu.Options{}) })
	fmt.Println(e.Values(t.Y)[:2], math.Abs(float64(e.Values(t.Y)[2])))
	// Output: [200 0] 0
}

// A product wrote g and u beside each other, and the gradients go beside each other, too: the halves
// are views. The slope of gelu at 0 is 1/2.
func ExampleBackward() {
	e := vktest.NewExample()
	defer e.Close()
	p := glu.Problem{Rows: 2, Cols: 1, Activation: glu.GELU, DType: dtype.Float32}
	x, dx := e.Float32([]int{2, 2}, 0, 3, 0, 5), e.Float32([]int{2, 2})
	t := glu.Tensors{G: x.Slice(1, 0, 1), U: x.Slice(1, 1, 2)}
	g := glu.Gradients{DY: e.Float32([]int{2, 1}, 1, 2), DG: dx.Slice(1, 0, 1), DU: dx.Slice(1, 1, 2)}
	e.Run(func(c *vk.Cmd) error { return glu.Backward(c, t, g, p, glu.Options{}) })
	fmt.Println(e.Values(dx))
	// Output: [1.5 0 5 0]
}

// A plan says what would run.
func ExampleChoose() {
	caps := &vk.Caps{ScalarBlockLayout: true, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}} // plain Vulkan 1.2
	a, err := glu.ParseActivation("gelu-tanh")
	p := glu.Problem{Rows: 1000, Cols: 512, Activation: a, DType: dtype.Float32}
	fmt.Println(err, glu.Supports(caps, p, kit.Backward, glu.Options{}))
	plan, err := glu.Choose(caps, p, kit.Backward, glu.Options{})
	vktest.Must(err)
	bytes, err := glu.Workspace(caps, p, kit.Backward, glu.Options{})
	fmt.Println(plan, plan.Kernels(), bytes, err)
	// Output:
	// <nil> <nil>
	// wg128 [glu_bwd] 0 <nil>
}
