package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// The matrix path loads eight elements of A and B at once. If rows are not aligned, as rows of
// 1365 elements, each eight take two loads and a shift, in every workgroup that reads them: 137
// TFLOP/s instead of 202 (11000 x 1365 x 512, H200). A copy with padded rows costs its traffic
// once, and all workgroups read it.

// leastReuse is how often an operand must be read before a copy pays.
const leastReuse = 256

// aligns reports which operands are copied if they are not aligned, as far as sizes and options
// tell.
func (c *Config) aligns(p *Problem, opt *Options) (a, b bool) {
	if !c.AlignRows || c.Impl != CoopMat || p.DType == dtype.Float32 {
		return false, false
	}
	a = !opt.AlignedA && p.AShape()[2]%8 != 0 && p.N >= leastReuse
	b = !opt.AlignedB && !c.PackB && p.BShape()[2]%8 != 0 && p.M >= leastReuse
	return a, b
}

// alignedBytes returns the memory of a copy of all matrices of an operand.
func alignedBytes(shape []int) int64 {
	return 2 * int64(shape[0]) * int64(shape[1]) * int64(RowStride(shape[2]))
}

// alignParams is the push-constant block of gemm_align.comp.
type alignParams struct {
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

// alignSpec is the specialization of gemm_align.comp.
type alignSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
}

// alignedCopy returns the copy of t in memory from byte at on, and its source: t, or the one matrix
// that all products share.
func alignedCopy(t vk.Tensor, memory *vk.Buffer, at int64) (to, from vk.Tensor) {
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
	if !argument.Aligned(16/size, dst) {
		return fmt.Errorf("gemm: dst has offset %d and strides %v: not multiples of 16 bytes", dst.Offset, dst.Strides)
	}
	if end := (int64(dst.Offset+dst.Span())*int64(size) + 15) &^ 15; end > dst.Buffer.Bytes() {
		return fmt.Errorf("gemm: dst with its zeros ends at byte %d of a buffer of %d", end, dst.Buffer.Bytes())
	}
	const threads = 128
	kernel := chips.Kernel[alignParams](c, "gemm_align", "", alignSpec{threads}, vk.KernelOptions{})
	halves := size / 2 // 16-bit elements of the kernel in an element
	batches, rows, row8 := src.Shape[0], src.Shape[1], (src.Shape[2]*halves+7)/8
	groups := Grid(c, (rows*row8+threads-1)/threads, batches, "a copy of shape %v", src.Shape)
	c.Note(func() vk.Note {
		return vk.Note{Text: fmt.Sprintf("%dx%d", batches*rows, src.Shape[2]), Bytes: vk.Traffic(src, dst)}
	})
	kernel.Dispatch(c, groups, alignParams{
		Rows: uint32(rows), Len: uint32(src.Shape[2] * halves), Row8: uint32(row8),
		Offset: uint32(src.Offset * halves), StrideB: uint32(src.Strides[0] * halves), Stride: uint32(src.Strides[1] * halves),
		OutOffset: uint32(dst.Offset * halves), OutStrideB: uint32(dst.Strides[0] * halves), OutStride: uint32(dst.Strides[1] * halves),
	}, src, dst)
	return c.Err()
}
