package normlinear_test

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/normlinear"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A branch is added to the residual stream. The root of the mean square of the sum, (3, -3), is 3.
func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := normlinear.Problem{Rows: 1, In: 2, Out: 3, Residual: true}
	t := normlinear.Tensors{
		X: e.Float32([]int{1, 2}, 1, -1), Residual: e.Float32([]int{1, 2}, 2, -2), NormW: e.Float32([]int{2}, 1, 2),
		W: e.Float32([]int{3, 2}, 1, 0, 0, 1, 1, 1), Y: e.Float32([]int{1, 3}), Sum: e.Float32([]int{1, 2}),
	}
	e.Run(func(c *vk.Cmd) error { return normlinear.Forward(c, t, p, normlinear.Options{}) })
	fmt.Printf("%v %.3f\n", e.Values(t.Sum), e.Values(t.Y))
	// Output: [3 -3] [1.000 -2.000 -1.000]
}

// A plan says what would run.
func ExampleChoose() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		ScalarBlockLayout: true, MaxSharedMemoryBytes: 16384, MaxWorkgroupInvocations: 128, MaxWorkgroupSize: [3]uint32{128, 128, 64},
	}
	p := normlinear.Problem{Rows: 1, In: 2048, Out: 8192, GLU: true, DType: dtype.Float32}
	plan, err := normlinear.Choose(caps, p, kit.Forward, normlinear.Options{})
	fmt.Println(plan, plan.Kernels(), err)
	bytes, err := normlinear.Workspace(caps, p, kit.Forward, normlinear.Options{})
	fmt.Println(bytes, err, normlinear.Supports(caps, p, kit.Forward, normlinear.Options{}))
	config, err := normlinear.ParseConfig("t2x64 rows4 steps2")
	fmt.Println(config.Team, err, config.Feasible(caps, p))
	// Output:
	// t1x128 rows8 steps1 [normlinear] <nil>
	// 0 <nil> <nil>
	// 64 <nil> <nil>
}
