package gemm

import (
	"github.com/flashvk/flashvk/chips"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// Fragments: Pair takes its operands in the order in which invocations hold the elements of
// matrices. A kernel of its own brings them into it: an invocation then loads its part of a
// matrix at once, instead of two elements at a time, and there are no tails.

// fragmentsParams is the push-constant block of gemm_fragments.comp.
type fragmentsParams struct {
	X  fragmentSource `glsl:"x"`
	W1 fragmentSource `glsl:"w1"`
	W2 fragmentSource `glsl:"w2"`
}

// fragmentSource is Source of gemm_fragments.comp, which has a drawing of the order.
type fragmentSource struct {
	Offset uint32 `glsl:"offset"` // elements, like the next
	Stride uint32 `glsl:"stride"`
	Rows   uint32 `glsl:"rows"`
	Cols   uint32 `glsl:"cols"`
	Width  uint32 `glsl:"width"` // matrices, like the next three
	Panels uint32 `glsl:"panels"`
	Depth  uint32 `glsl:"depth"`
	Count  uint32 `glsl:"count"`
	At     uint32 `glsl:"at"` // units of 16 bytes
}

// fragmentsSpec is the specialization of gemm_fragments.comp.
type fragmentsSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Subgroups     uint32 `glsl:"SUBGROUPS"`
	MatM          uint32 `glsl:"MAT_M"`
	MatN          uint32 `glsl:"MAT_N"`
	Rounds        uint32 `glsl:"ROUNDS"`
}

// A layOut says where the matrices of an operand go: Panels of Width matrices across k,
// Depth of them along k one after the other.
type layOut struct {
	width, panels, depth, groups int
	at                           int64 // bytes
}

// matrices returns how many there are.
func (l layOut) matrices() int64 {
	return int64(l.width) * int64(l.panels) * int64(l.depth) * int64(l.groups)
}

// source returns what the kernel wants to know of a matrix (rows, columns).
func (l layOut) source(t vk.Tensor) fragmentSource {
	return fragmentSource{
		Offset: uint32(t.Offset), Stride: uint32(t.Strides[0]), Rows: uint32(t.Shape[0]), Cols: uint32(t.Shape[1]),
		Width: uint32(l.width), Panels: uint32(l.panels), Depth: uint32(l.depth), Count: uint32(l.matrices()), At: uint32(l.at / 16),
	}
}

// fragments records gemm_fragments: the matrices of x, w1 and w2, of a 16-bit format, to
// memory.
func fragments(c *vk.Cmd, memory *vk.Buffer, tensors [3]vk.Tensor, layouts [3]layOut) error {
	const subgroups, rounds = 4, 4
	d, format := c.Device(), tensors[0].DType
	shape, lack := chips.MatrixShape(d.Caps(), format)
	if lack != "" {
		return unsupported("pair: %s", lack)
	}
	module, err := shaders.Get("gemm_fragments", format.Short())
	if err != nil {
		return err
	}
	kernel, err := vk.CachedKernel[fragmentsParams](d, module.Name, module.SPIRV, fragmentsSpec{
		WorkgroupSize: subgroups * d.Caps().SubgroupSize, Subgroups: subgroups, MatM: shape.M, MatN: shape.N, Rounds: rounds,
	}, chips.MatrixOptions(d.Caps()))
	if err != nil {
		return err
	}
	most := int64(0)
	for _, l := range layouts {
		most = max(most, l.matrices())
	}
	limit := d.Caps().MaxWorkgroupCount
	groups := (most + subgroups*rounds - 1) / (subgroups * rounds)
	x := min(groups, int64(limit[0]))
	y := (groups + x - 1) / x
	if y > int64(limit[1]) {
		return unsupported("pair: a copy of %d matrices takes more than the device's %d x %d workgroups", most, limit[0], limit[1])
	}
	c.Note(func() vk.Note {
		bytes := vk.Traffic(tensors[:]...)
		for _, l := range layouts {
			bytes += 2 * float64(l.matrices()) * float64(shape.M*shape.N)
		}
		return vk.Note{Text: "x, w1, w2", Bytes: bytes}
	})
	kernel.Dispatch(c, vk.Groups{X: uint32(x), Y: uint32(y), Z: 3}, fragmentsParams{
		layouts[0].source(tensors[0]), layouts[1].source(tensors[1]), layouts[2].source(tensors[2]),
	}, tensors[0], tensors[1], tensors[2], vk.View(memory, dtype.Float32, int(memory.Bytes()/4)))
	return c.Err()
}
