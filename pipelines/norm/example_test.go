package norm_test

import (
	"fmt"
	"testing"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// A row of two elements becomes their distance from the mean in deviations.
func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := norm.Problem{Rows: 1, Cols: 2} // float32
	t := norm.Tensors{X: e.Float32([]int{1, 2}, 3, 5), W: e.Float32([]int{2}, 1, 10), Y: e.Float32([]int{1, 2})}
	e.Run(func(c *vk.Cmd) error { return norm.Forward(c, t, p, norm.Options{}) })
	fmt.Println(e.Values(t.Y))
	// Output: [-1 10]
}

// The loss is the first element of y. Moving both elements of x alike changes nothing, so the
// elements of dx add up to 0. Two elements have a y of ±1 whatever their distance, so both are 0
// but for eps.
func ExampleBackward() {
	e := vktest.NewExample()
	defer e.Close()
	p := norm.Problem{Rows: 1, Cols: 2, Eps: 3} // float32
	t := norm.Tensors{
		X: e.Float32([]int{1, 2}, 3, 5), W: e.Float32([]int{2}, 1, 1), Y: e.Float32([]int{1, 2}),
		Mean: e.Float32([]int{1}), RStd: e.Float32([]int{1}),
	}
	g := norm.Gradients{DY: e.Float32([]int{1, 2}, 1, 0), DX: e.Float32([]int{1, 2}), DW: e.Float32([]int{2})}
	e.Run(func(c *vk.Cmd) error {
		if err := norm.Forward(c, t, p, norm.Options{}); err != nil {
			return err
		}
		return norm.Backward(c, t, g, p, norm.Options{})
	})
	fmt.Println(e.Values(g.DX), e.Values(g.DW))
	// Output: [0.1875 -0.1875] [-0.5 0]
}

// A plan says what would run.
func ExampleChoose() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		SubgroupSize: 32, MinSubgroupSize: 32, MaxSubgroupSize: 32, MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256,
		MaxWorkgroupSize: [3]uint32{256, 256, 64}, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}, MaxStorageBufferRange: 1 << 30,
		MaxStorageBuffers: 16, MaxPushConstantsBytes: 128, ScalarBlockLayout: true, ComputeFullSubgroups: true,
		SubgroupOps: vk.SubgroupBasic | vk.SubgroupArithmetic | vk.SubgroupShuffle,
	}
	p := norm.Problem{Rows: 1000, Cols: 512}
	fmt.Println(norm.Supports(caps, p, kit.Backward, norm.Options{}))
	plan, err := norm.Choose(caps, p, kit.Backward, norm.Options{})
	vktest.Must(err)
	bytes, err := norm.Workspace(caps, p, kit.Backward, norm.Options{})
	fmt.Println(plan.Kernels(), bytes, err)
	fmt.Println(plan)
	// Output:
	// <nil>
	// [norm_bwd sum_rows] 256000 <nil>
	// wg256 subgroup loads4 rows1 groups4 ahead
}

func ExampleParseConfig() {
	c, err := norm.ParseConfig("wg64 loads3 rows1 groups16 ahead")
	fmt.Println(c.Threads, c.Loads, c.Groups, err)
	// Output: 64 3 16 <nil>
}
