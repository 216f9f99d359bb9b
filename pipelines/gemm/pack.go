package gemm

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// Packing: the matrix path loads eight elements of A and B at once. Where rows start
// anywhere, as those of 1365 elements do, each piece takes two loads and a shift, in every
// workgroup that reads it: 137 TFLOP/s instead of 202 (11000 x 1365 x 512, H200). A copy
// with padded rows is read by all workgroups, and costs its traffic once.

// leastReuse is how often an operand must be read for a copy to pay.
const leastReuse = 256

// packs reports which operands are copied if they are not aligned in memory, as far as
// sizes and options tell.
func (c *Config) packs(p *Problem, opt *Options) (a, b bool) {
	if !c.Pack || c.Impl != CoopMat || p.DType == dtype.Float32 {
		return false, false
	}
	a = !opt.AlignedA && p.AShape()[2]%8 != 0 && p.N >= leastReuse
	b = !opt.AlignedB && p.BShape()[2]%8 != 0 && p.M >= leastReuse
	return a, b
}

// packedBytes returns the memory of a copy of all matrices of an operand.
func packedBytes(shape []int) int64 {
	return 2 * int64(shape[0]) * int64(shape[1]) * int64((shape[2]+7)/8*8)
}

// packParams is the push-constant block of gemm_pack.comp.
type packParams struct {
	Rows      uint32 `glsl:"rows"`
	Len       uint32 `glsl:"len"`
	Row8      uint32 `glsl:"row8"`
	Offset    uint32 `glsl:"offset"` // elements, like all that follow
	StrideB   uint32 `glsl:"stride_b"`
	Stride    uint32 `glsl:"stride"`
	OutOffset uint32 `glsl:"out_offset"`
}

// packSpec is the specialization of gemm_pack.comp.
type packSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
}

// pack records a copy of t to memory from byte `at` on, and returns it.
func pack(c *vk.Cmd, t vk.Tensor, memory *vk.Buffer, at int64) (vk.Tensor, error) {
	module, err := shaders.Get("gemm_pack", "")
	if err != nil {
		return t, err
	}
	const threads = 128
	kernel, err := vk.CachedKernel[packParams](c.Device(), module.Name, module.SPIRV, packSpec{threads}, vk.KernelOptions{})
	if err != nil {
		return t, err
	}
	rows, row8 := t.Shape[1], (t.Shape[2]+7)/8
	batches := t.Shape[0]
	out := t
	out.Buffer, out.Offset = memory, int(at/2)
	out.Strides = []int{rows * row8 * 8, row8 * 8, 1}
	if batches > 1 && t.Strides[0] == 0 { // one matrix for all products
		batches, out.Strides[0] = 1, 0
	}
	limit := c.Device().Caps().MaxWorkgroupCount
	groups := (rows*row8 + threads - 1) / threads
	x := min(groups, int(limit[0]))
	y := (groups + x - 1) / x
	if y > int(limit[1]) || batches > int(limit[2]) {
		return t, unsupported("a copy of shape %v takes more than the device's %v workgroups", t.Shape, limit)
	}
	kernel.Dispatch(c, vk.Groups{X: uint32(x), Y: uint32(y), Z: uint32(batches)}, packParams{
		Rows: uint32(rows), Len: uint32(t.Shape[2]), Row8: uint32(row8),
		Offset: uint32(t.Offset), StrideB: uint32(t.Strides[0]), Stride: uint32(t.Strides[1]), OutOffset: uint32(out.Offset),
	}, t, out)
	return out, c.Err()
}
