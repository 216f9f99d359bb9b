package norm_test

import (
	"context"
	"fmt"
	"log"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// A row of two elements becomes their distance from the mean in deviations.
func ExampleForward() {
	d, err := vk.Open(vk.Options{})
	check(err)
	defer d.Close()
	p := norm.Problem{Rows: 1, Cols: 2, DType: dtype.Float32}
	t := norm.Tensors{X: tensor(d, "x", []int{1, 2}, 3, 5), W: tensor(d, "w", []int{2}, 1, 10), Y: tensor(d, "y", []int{1, 2})}
	for _, x := range []vk.Tensor{t.X, t.W, t.Y} {
		defer x.Close()
	}
	check(d.Run(context.Background(), "norm", func(c *vk.Cmd) error { return norm.Forward(c, t, p, norm.Options{}) }))
	show("%g", t.Y)
	// Output: [-1 10]
}

// The loss is the first element of y. Moving both elements of x alike changes nothing, so the
// elements of dx add up to 0. Two elements have a y of ±1 whatever their distance, so both are 0
// but for eps.
func ExampleBackward() {
	d, err := vk.Open(vk.Options{})
	check(err)
	defer d.Close()
	p := norm.Problem{Rows: 1, Cols: 2, DType: dtype.Float32, Eps: 3}
	row, one := []int{1, 2}, []int{1}
	t := norm.Tensors{
		X: tensor(d, "x", row, 3, 5), W: tensor(d, "w", []int{2}, 1, 1), Y: tensor(d, "y", row),
		Mean: tensor(d, "mean", one), RStd: tensor(d, "rstd", one),
	}
	g := norm.Gradients{DY: tensor(d, "dy", row, 1, 0), DX: tensor(d, "dx", row), DW: tensor(d, "dw", []int{2})}
	for _, x := range []vk.Tensor{t.X, t.W, t.Y, t.Mean, t.RStd, g.DY, g.DX, g.DW} {
		defer x.Close()
	}
	check(d.Run(context.Background(), "norm", func(c *vk.Cmd) error {
		if err := norm.Forward(c, t, p, norm.Options{}); err != nil {
			return err
		}
		return norm.Backward(c, t, g, p, norm.Options{})
	}))
	show("%g ", g.DX, g.DW)
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
	p := norm.Problem{Rows: 1000, Cols: 512, DType: dtype.Float32}
	fmt.Println(norm.Supports(caps, p, kit.Backward, norm.Options{}))
	plan, err := norm.Choose(caps, p, kit.Backward, norm.Options{})
	check(err)
	bytes, err := norm.Workspace(caps, p, kit.Backward, norm.Options{})
	fmt.Println(plan.Kernels(), bytes, err)
	fmt.Println(plan)
	// Output:
	// <nil>
	// [norm_bwd sum_rows] 256000 <nil>
	// wg256 subgroup loads4 rows1 groups4 ahead
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
