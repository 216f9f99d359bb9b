package quantize_test

import (
	"errors"
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/quantize"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// The largest number of a row becomes the largest element.
func ExampleForward() {
	e := vktest.NewExample()
	defer e.Close()
	p := quantize.Problem{Batch: 1, Heads: 1, Rows: 2, Cols: 3, Quant: dtype.QuantE4M3, Block: 1} // of float32
	x := e.Float32([]int{1, 1, 2, 3}, 896, -2, 0.1, 0, 0, -7)
	y, scale := e.Tensor(p.Quant.Element(), x.Shape), e.Float32(p.ScaleShape())
	e.Run(func(c *vk.Cmd) error {
		return quantize.Forward(c, quantize.Tensors{X: x, Y: y, Scale: scale}, p, quantize.Options{})
	})
	fmt.Println(e.Values(y), e.Values(scale))
	// Output: [448 -1 0.05078125 0 0 -448] [2 0.015625]
}

// A tensor whose scale workgroups find together needs memory for what each has found.
func ExampleChoose() {
	caps := &vk.Caps{ // plain Vulkan 1.2
		MaxSharedMemoryBytes: 32768, MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64},
		ScalarBlockLayout: true, Storage16: true, Storage8: true,
	}
	p := quantize.Problem{Batch: 1, Heads: 8, Rows: 1000, Cols: 128, DType: dtype.BFloat16, Quant: dtype.QuantInt8, Block: 64}
	for range 2 {
		plan, err := quantize.Choose(caps, p, kit.Forward, quantize.Options{})
		vktest.Must(err)
		bytes, err := quantize.Workspace(caps, p, kit.Forward, quantize.Options{})
		fmt.Printf("%v: %v, %v, %d bytes, %v\n", p.ScaleShape(), plan, plan.Kernels(), bytes, err)
		p.Whole, p.Block = true, 0
	}
	err := quantize.Supports(caps, p, kit.Backward, quantize.Options{})
	fmt.Println(err, errors.Is(err, vk.ErrUnsupported))
	// Output:
	// [1 8 16]: 256 invocations a scale, [quantize], 0 bytes, <nil>
	// [1]: 125 parts, [quantize], 500 bytes, <nil>
	// quantize: there is no backward pass: unsupported on this device true
}
