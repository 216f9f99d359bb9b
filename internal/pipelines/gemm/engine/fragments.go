package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// PackB: gemm_fragments copies op(B) into the order in which invocations hold the elements of
// right matrices; package fused of mlp copies all operands. An invocation then loads its part of
// a matrix at once, instead of two elements at a time, and there are no tails. Right matrices
// come straight from memory. Right matrices take no shared memory and none of its bandwidth, which
// limits the kernel that has both operands there.

// fragmentsParams is the push-constant block of gemm_fragments.comp.
type fragmentsParams struct {
	X  fragmentSource `glsl:"x"`
	W1 fragmentSource `glsl:"w1"`
	W2 fragmentSource `glsl:"w2"`
}

// fragmentSource is Source of gemm_fragments.comp, where the order is drawn.
type fragmentSource struct {
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

// FragmentsSpec is the specialization of gemm_fragments.comp. With ByK the operand of a product, or the
// last two of a chain, are transposed.
type FragmentsSpec struct {
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

// DealFor returns the deal of a product of a format with fragments some tensors of which leave as
// lib/gemm_runs.glsl says, eight elements of 16 bits at a time or four of float32: rows of them begin at
// whole 16 bytes, and invocations hold rows and columns of matrices as it expects.
func DealFor(d *vk.Device, format dtype.DType, config *Config, tensors ...vk.Tensor) (Deal, error) {
	if !config.PackB {
		return Deal{}, nil
	}
	for _, t := range tensors {
		if !t.IsZero() && !Aligned(16/t.DType.Size(), t) {
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
func (l Layout) source(t vk.Tensor) fragmentSource {
	return fragmentSource{
		Offset: uint32(t.Offset), Stride: uint32(t.Strides[0]), Rows: uint32(t.Shape[0]), Cols: uint32(t.Shape[1]),
		Width: uint32(l.Width), Panels: uint32(l.Panels), Depth: uint32(l.Depth), Count: uint32(l.Matrices()),
		At: uint32(l.At / 16),
	}
}

// CopyFragments records gemm_fragments: it packs one operand of a product, or three of a chain of two,
// of a 16-bit format, into memory. Spec has the rest.
func CopyFragments(c *vk.Cmd, memory *vk.Buffer, tensors []vk.Tensor, layouts []Layout, spec FragmentsSpec, text string) error {
	const subgroups = 4 // of one matrix each: four of them took 7 µs instead of 5 for 512 x 1536 (H200)
	caps, format := c.Device().Caps(), tensors[0].DType
	shape, lack := chips.MatrixShape(caps, format)
	if lack != "" {
		return Unsupported("fragments: %s", lack)
	}
	var sources [3]fragmentSource
	bound, first, most, matrices := [3]vk.Tensor{tensors[0], tensors[0], tensors[0]}, (3-len(tensors))/2, int64(0), int64(0)
	for i, l := range layouts {
		sources[first+i], bound[first+i] = l.source(tensors[i]), tensors[i]
		most, matrices = max(most, l.Matrices()/int64(max(l.Width, 1))), matrices+l.Matrices()
	}
	spec.WorkgroupSize, spec.Subgroups, spec.MatM, spec.MatN = subgroups*caps.SubgroupSize, subgroups, shape.M, shape.N
	spec.First, spec.Sources, spec.Deal = uint32(first), uint32(len(tensors)), spec.Deal.Constants()
	kernel, err := chips.Kernel[fragmentsParams](c.Device(), "gemm_fragments", format.Short(), spec, chips.MatrixOptions(caps))
	if err != nil {
		return err
	}
	groups, err := Grid(c, int(most), len(tensors), "a copy of %s", text)
	if err != nil {
		return err
	}
	c.Note(func() vk.Note {
		return vk.Note{Text: text, Bytes: vk.Traffic(tensors...) + 2*float64(matrices)*float64(shape.M*shape.N)}
	})
	kernel.Dispatch(c, groups, fragmentsParams{sources[0], sources[1], sources[2]}, bound[0], bound[1], bound[2], vk.View(memory, dtype.Float32, int(memory.Bytes()/4)))
	return c.Err()
}

// mostAhead is the most that rightAhead returns.
const mostAhead = 8

// rightAhead is AHEAD of lib/gemm_slab.glsl.
func (c *Config) rightAhead() int {
	if c.TilesM*c.TilesN < 16 {
		return mostAhead
	}
	return 4
}

// feasibleFragments is Feasible for a packed op(B). Matrices are m by n.
func (c *Config) feasibleFragments(caps *vk.Caps, p *Problem, m, n int) error {
	switch {
	case !c.PackB:
		return nil
	case p.DType == dtype.Float32:
		return Unsupported("coopmat: float32 operands have no fragments")
	case m != n || n*n != 8*int(caps.SubgroupSize):
		return Unsupported("coopmat: fragments of %dx%d matrices are not 8 elements for each of %d invocations", m, n, caps.SubgroupSize)
	case c.BlockK/n*c.TilesN%c.rightAhead() != 0:
		return Unsupported("coopmat: a slab of %d x %d right matrices is not a multiple of the %d that are on their way", c.BlockK/n, c.TilesN, c.rightAhead())
	}
	if bytes := c.rightBytes(caps, p); uint64(bytes) > caps.MaxStorageBufferRange {
		return Unsupported("coopmat: op(B) in fragments has %d bytes, more than the device's %d of a storage buffer", bytes, caps.MaxStorageBufferRange)
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

// Fragment returns the step that packs op(B), one matrix of all products or one of each, into
// memory from byte at on, and makes it the operand.
func (m *MemoryPlan) Fragment(caps *vk.Caps, args *Args, p Problem, memory *vk.Buffer, at int64) func(c *vk.Cmd) error {
	l, b, size := m.right, args.B, rightSize(caps)
	count, stride := p.Batches(), int(l.Matrices())*size
	if b.Strides[0] == 0 || count == 1 {
		count, stride = 1, 0
	}
	args.B = vk.Tensor{
		Buffer: memory, DType: p.DType,
		Shape: []int{1, count*int(l.Matrices()) + mostAhead, size}, Strides: []int{stride, size, 1}, Offset: int((at + m.b) / 2),
	}.Narrow()
	to, first, spec := args.B.Buffer, args.B.Offset, FragmentsSpec{ByK: p.TransB, Deal: args.Deal}
	return func(c *vk.Cmd) error {
		for i := range count {
			of, l := b, l
			of.Shape, of.Strides, of.Offset = b.Shape[1:], b.Strides[1:], b.Offset+i*b.Strides[0]
			l.At = 2 * int64(first+i*stride)
			k, n := of.Shape[0], of.Shape[1]
			if p.TransB {
				k, n = n, k
			}
			if err := CopyFragments(c, to, []vk.Tensor{of}, []Layout{l}, spec, fmt.Sprintf("op(b) %dx%d", k, n)); err != nil {
				return err
			}
		}
		return nil
	}
}

// The matrix path loads eight elements of A and B at once. If rows are not aligned, as rows of
// 1365 elements, each eight take two loads and a shift, in every workgroup that reads them: 137
// TFLOP/s instead of 202 (11000 x 1365 x 512, H200). A copy with padded rows costs its traffic
// once, and all workgroups read it.

// leastReuse is how often an operand must be read before a copy pays.
const leastReuse = 256

// packs reports which operands are copied if they are not aligned, as far as sizes and options
// tell.
func (c *Config) packs(p *Problem, opt *Options) (a, b bool) {
	if !c.AlignRows || c.Impl != CoopMat || p.DType == dtype.Float32 {
		return false, false
	}
	a = !opt.AlignedA && p.AShape()[2]%8 != 0 && p.N >= leastReuse
	b = !opt.AlignedB && !c.PackB && p.BShape()[2]%8 != 0 && p.M >= leastReuse
	return a, b
}

// packedBytes returns the memory of a copy of all matrices of an operand.
func packedBytes(shape []int) int64 {
	return 2 * int64(shape[0]) * int64(shape[1]) * int64(RowStride(shape[2]))
}

// packParams is the push-constant block of gemm_pack.comp.
type packParams struct {
	Rows       uint32 `glsl:"rows"`
	Len        uint32 `glsl:"len"`
	Row8       uint32 `glsl:"row8"`
	Offset     uint32 `glsl:"offset"` // elements, like all that follow
	StrideB    uint32 `glsl:"stride_b"`
	Stride     uint32 `glsl:"stride"`
	OutOffset  uint32 `glsl:"out_offset"`
	OutStrideB uint32 `glsl:"out_stride_b"`
	OutStride  uint32 `glsl:"out_stride"`
}

// packSpec is the specialization of gemm_pack.comp.
type packSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
}

// packed returns the copy of t in memory from byte at on, and its source: t, or the one matrix
// that all products share.
func packed(t vk.Tensor, memory *vk.Buffer, at int64) (to, from vk.Tensor) {
	stride := RowStride(t.Shape[2])
	from, to = t, t
	to.Buffer, to.Offset = memory, int(at/2)
	to.Strides = []int{t.Shape[1] * stride, stride, 1}
	if t.Strides[0] == 0 {
		from.Shape, to.Strides[0] = []int{1, t.Shape[1], t.Shape[2]}, 0
		to.Shape = from.Shape
	}
	return to.Narrow(), from
}

// RowStride returns the distance of rows of n elements, in elements, that is fastest for
// operands: a multiple of 8, and where that adds little a multiple of 64, so that k-tiles along
// the rows are whole lines of a cache.
func RowStride(n int) int {
	unit := 8
	if n >= 1024 {
		unit = 64
	}
	return (n + unit - 1) / unit * unit
}

// Pad copies matrices, (batch, rows, columns) of one format, from src to dst, and fills the rows
// of dst with zeros up to the next multiple of 16 bytes:
//
//	dst[b, r, c] = src[b, r, c] for c < columns, 0 for the rest of 16 bytes
//
// Src has any strides with a contiguous last axis. The offset, matrices and rows of dst start at
// multiples of 16 bytes. Src and dst share no memory.
//
// Pad records into c and returns, as Multiply does. It returns an error that names the argument
// that does not fit, or wraps vk.ErrUnsupported if the copy is too large for one dispatch.
func Pad(c *vk.Cmd, dst, src vk.Tensor) (err error) {
	defer c.Keep(&err)
	if len(src.Shape) != 3 {
		return fmt.Errorf("gemm: src has shape %v, want three axes", src.Shape)
	}
	err = argument.Check("gemm", []argument.Argument{argument.New("src", src, true, src.DType, src.Shape)},
		[]argument.Argument{argument.New("dst", dst, true, src.DType, src.Shape)})
	if err != nil {
		return err
	}
	size := src.DType.Size()
	if !Aligned(16/size, dst) {
		return fmt.Errorf("gemm: dst has offset %d and strides %v: not multiples of 16 bytes", dst.Offset, dst.Strides)
	}
	if end := (int64(dst.Offset+dst.Span())*int64(size) + 15) &^ 15; end > dst.Buffer.Bytes() {
		return fmt.Errorf("gemm: dst with its zeros ends at byte %d of a buffer of %d", end, dst.Buffer.Bytes())
	}
	const threads = 128
	kernel, err := chips.Kernel[packParams](c.Device(), "gemm_pack", "", packSpec{threads}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	halves := size / 2 // 16-bit elements of the kernel in an element
	batches, rows, row8 := src.Shape[0], src.Shape[1], (src.Shape[2]*halves+7)/8
	groups, err := Grid(c, (rows*row8+threads-1)/threads, batches, "a copy of shape %v", src.Shape)
	if err != nil {
		return err
	}
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%dx%d", batches*rows, src.Shape[2]), Bytes: vk.Traffic(src, dst)}
	})
	kernel.Dispatch(c, groups, packParams{
		Rows: uint32(rows), Len: uint32(src.Shape[2] * halves), Row8: uint32(row8),
		Offset: uint32(src.Offset * halves), StrideB: uint32(src.Strides[0] * halves), Stride: uint32(src.Strides[1] * halves),
		OutOffset: uint32(dst.Offset * halves), OutStrideB: uint32(dst.Strides[0] * halves), OutStride: uint32(dst.Strides[1] * halves),
	}, src, dst)
	return c.Err()
}
