package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// PackB: gemm_pack copies op(B) into the order in which invocations hold the elements of
// right matrices; package fused of mlp copies all operands. An invocation then loads its part of
// a matrix at once, instead of two elements at a time, and there are no tails. Right matrices
// come straight from memory. Right matrices take no shared memory and none of its bandwidth, which
// limits the kernel that has both operands there.

// packParams is the push-constant block of gemm_pack.comp.
type packParams struct {
	X  packSource `glsl:"x"`
	W1 packSource `glsl:"w1"`
	W2 packSource `glsl:"w2"`
}

// packSource is Source of gemm_pack.comp, where the order is drawn.
type packSource struct {
	Offset uint32 `glsl:"offset"` // elements, like the next
	Stride uint32 `glsl:"stride"`
	Rows   uint32 `glsl:"rows"`
	Cols   uint32 `glsl:"cols"`
	Width  uint32 `glsl:"width"` // matrices, like the next two
	Panels uint32 `glsl:"panels"`
	Depth  uint32 `glsl:"depth"`
	Count  uint32 `glsl:"count"`
	At     uint32 `glsl:"at"` // units of 16 bytes
}

// PackSpec is the specialization of gemm_pack.comp. With ByK the operand of a product, or the
// last two of a chain, are transposed.
type PackSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Subgroups     uint32 `glsl:"SUBGROUPS"`
	MatM          uint32 `glsl:"MAT_M"`
	MatN          uint32 `glsl:"MAT_N"`
	First         uint32 `glsl:"FIRST"`
	ByK           bool   `glsl:"BY_K"`
	Sources       uint32 `glsl:"SOURCES"`
	Deal          Deal   `glsl:"deal"`
}

// A Deal says how columns of op(B) are dealt out to right matrices, lib/deal.glsl; the zero value:
// they lie as they are.
type Deal struct {
	RowRun   uint32 `glsl:"DEAL_RUN"`
	RowLanes uint32 `glsl:"DEAL_LANES"`
}

// Constants returns d for a shader, which divides by DEAL_RUN.
func (d Deal) Constants() Deal {
	d.RowRun = max(d.RowRun, 1)
	return d
}

// DealFor returns the deal of a product of a format, with a packed op(B), some tensors of which leave as
// lib/gemm_runs.glsl says, eight elements of 16 bits at a time or four of float32: rows of them begin at
// whole 16 bytes, and invocations hold rows and columns of matrices as it expects.
func DealFor(d *vk.Device, format dtype.DType, config *Config, tensors ...vk.Tensor) (Deal, error) {
	if !config.PackB {
		return Deal{}, nil
	}
	for _, t := range tensors {
		if !argument.Aligned(16/t.DType.Size(), t) {
			return Deal{}, nil
		}
	}
	shape, lack := chips.MatrixShape(d.Caps(), format)
	if lack != "" {
		return Deal{}, Unsupported("coopmat: %s", lack)
	}
	l, err := chips.LayoutOf(d, format, shape)
	if err != nil || !l.Pairs || !l.Spread || 8%l.RowRun != 0 {
		return Deal{}, err
	}
	return Deal{uint32(l.RowRun), uint32(l.RowLanes)}, nil
}

// A Layout says where the matrices of an operand go: into panels that are width matrices across k
// and depth matrices along k, one after the other.
type Layout struct {
	Width, Panels, Depth, Groups int
	At                           int64 // bytes
}

// Matrices returns the number of matrices.
func (l Layout) Matrices() int64 {
	return int64(l.Width) * int64(l.Panels) * int64(l.Depth) * int64(l.Groups)
}

// source returns the kernel's description of a matrix (rows, columns).
func (l Layout) source(t vk.Tensor) packSource {
	return packSource{
		Offset: uint32(t.Offset), Stride: uint32(t.Strides[0]), Rows: uint32(t.Shape[0]), Cols: uint32(t.Shape[1]),
		Width: uint32(l.Width), Panels: uint32(l.Panels), Depth: uint32(l.Depth), Count: uint32(l.Matrices()),
		At: uint32(l.At / 16),
	}
}

// Pack records gemm_pack: it packs one operand of a product, or three of a chain of two,
// of a 16-bit format, into memory. Spec has the rest.
func Pack(c *vk.Cmd, memory *vk.Buffer, tensors []vk.Tensor, layouts []Layout, spec PackSpec, text string) error {
	const subgroups = 4 // of one matrix each: four of them took 7 µs instead of 5 for 512 x 1536 (H200)
	caps, format := c.Device().Caps(), tensors[0].DType
	shape, lack := chips.MatrixShape(caps, format)
	if lack != "" {
		return Unsupported("packb: %s", lack)
	}
	var sources [3]packSource
	bound, first, most, matrices := [3]vk.Tensor{tensors[0], tensors[0], tensors[0]}, (3-len(tensors))/2, int64(0), int64(0)
	for i, l := range layouts {
		sources[first+i], bound[first+i] = l.source(tensors[i]), tensors[i]
		most, matrices = max(most, l.Matrices()/int64(max(l.Width, 1))), matrices+l.Matrices()
	}
	spec.WorkgroupSize, spec.Subgroups, spec.MatM, spec.MatN = subgroups*caps.SubgroupSize, subgroups, shape.M, shape.N
	spec.First, spec.Sources, spec.Deal = uint32(first), uint32(len(tensors)), spec.Deal.Constants()
	kernel := chips.Kernel[packParams](c, "gemm_pack", format.Short(), spec, chips.MatrixOptions(caps))
	groups := Grid(c, int(most), len(tensors), "a copy of %s", text)
	c.Note(func() vk.Note {
		return vk.Note{Text: text, Bytes: vk.Traffic(tensors...) + 2*float64(matrices)*float64(shape.M*shape.N)}
	})
	kernel.Dispatch(c, groups, packParams{sources[0], sources[1], sources[2]}, bound[0], bound[1], bound[2], vk.View(memory, dtype.Float32, int(memory.Bytes()/4)))
	return c.Err()
}

// mostAhead is the most that rightAhead returns.
const mostAhead = 8

// rightAhead is AHEAD of lib/gemm_k_tile.glsl.
func (c *Config) rightAhead() int {
	if c.TilesM*c.TilesN < 16 {
		return mostAhead
	}
	return 4
}

// feasiblePackB is Feasible for a packed op(B). Matrices are m by n.
func (c *Config) feasiblePackB(caps *vk.Caps, p *Problem, m, n int) error {
	switch {
	case !c.PackB:
		return nil
	case p.DType == dtype.Float32:
		return Unsupported("coopmat: float32 operands are not packed")
	case m != n || n*n != 8*int(caps.SubgroupSize):
		return Unsupported("coopmat: packb: %dx%d matrices have not 8 elements for each of %d invocations", m, n, caps.SubgroupSize)
	case c.BlockK/n*c.TilesN%c.rightAhead() != 0:
		return Unsupported("coopmat: a k-tile of %d x %d right matrices is not a multiple of the %d that are on their way", c.BlockK/n, c.TilesN, c.rightAhead())
	}
	if bytes := c.rightBytes(caps, p); uint64(bytes) > caps.MaxStorageBufferRange {
		return Unsupported("coopmat: packed, op(B) has %d bytes, more than the device's %d of a storage buffer", bytes, caps.MaxStorageBufferRange)
	}
	return nil
}

// rightLayout is the layout of a packed op(B): a panel for each subgroup of a row of them, of
// whole k-tiles, the last filled with zeros.
func (c *Config) rightLayout(caps *vk.Caps, p *Problem) Layout {
	_, blockN := c.Block(caps, p.DType)
	steps := c.BlockK / (blockN / (c.SubgroupsN * c.TilesN)) // of a k-tile
	return Layout{
		Width: c.TilesN, Panels: (p.N + blockN - 1) / blockN * c.SubgroupsN,
		Depth: (p.K + c.BlockK - 1) / c.BlockK * steps, Groups: 1,
	}
}

// rightBytes is the memory of a packed op(B), with the matrices that loads ahead read past its end.
func (c *Config) rightBytes(caps *vk.Caps, p *Problem) int64 {
	l := c.rightLayout(caps, p)
	return 2 * int64(rightSize(caps)) * (int64(p.Batches())*l.Matrices() + mostAhead)
}

// rightSize returns the elements of a right matrix, eight of each invocation.
func rightSize(caps *vk.Caps) int { return 8 * int(caps.SubgroupSize) }

// PackB returns the step that packs op(B), one matrix of all products or one of each, into
// memory from byte at on, and makes it the operand.
func (m *MemoryPlan) PackB(caps *vk.Caps, args *Args, p Problem, memory *vk.Buffer, at int64) func(c *vk.Cmd) error {
	l, b, size := m.right, args.B, rightSize(caps)
	count, stride := p.Batches(), int(l.Matrices())*size
	if b.Strides[0] == 0 || count == 1 {
		count, stride = 1, 0
	}
	args.B = vk.Tensor{
		Buffer: memory, DType: p.DType,
		Shape: []int{1, count*int(l.Matrices()) + mostAhead, size}, Strides: []int{stride, size, 1}, Offset: int((at + m.b) / 2),
	}.Narrow()
	to, first, spec := args.B.Buffer, args.B.Offset, PackSpec{ByK: p.TransB, Deal: args.Deal}
	return func(c *vk.Cmd) error {
		for i := range count {
			of, l := b, l
			of.Shape, of.Strides, of.Offset = b.Shape[1:], b.Strides[1:], b.Offset+i*b.Strides[0]
			l.At = 2 * int64(first+i*stride)
			k, n := of.Shape[0], of.Shape[1]
			if p.TransB {
				k, n = n, k
			}
			if err := Pack(c, to, []vk.Tensor{of}, []Layout{l}, spec, fmt.Sprintf("op(b) %dx%d", k, n)); err != nil {
				return err
			}
		}
		return nil
	}
}
