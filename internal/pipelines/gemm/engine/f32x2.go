package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// Float32 operands on matrices of float16 (f32x2). gemm_amax finds the largest magnitude (amax)
// of each row of op(A) and column of op(B). gemm_f32x2 scales them by powers of two and divides
// every element into a high and a low float16. The matrix kernel multiplies these: three products
// for one, with the errors of float32 (shaders/lib/gemm_panels.glsl). Gemm_amax and gemm_f32x2
// read the operands once, whatever their layout. The matrix kernel reads the high and low parts
// once for each row or column of blocks, in k-tiles without gaps.

// A tile of gemm_f32x2 is f32x2Rows rows of f32x2Columns elements. A tile of gemm_amax is f32x2Rows
// rows of a chunk. Short chunks make many workgroups; but gemm_f32x2 reads the amax of all chunks
// of its rows.
const (
	f32x2Rows    = 32
	f32x2Columns = 128
	leastChunk   = 128
	mostChunks   = 64
)

// From leastF32x2 and leastF32x2FLOPs on Auto prefers f32x2 to plain float32 arithmetic. Both
// operands are then read often enough to pay for the copies, and the product takes longer than
// starting two more kernels. Argued, not measured.
const (
	leastF32x2      = 64
	leastF32x2FLOPs = 1 << 28
)

// isF32x2 reports whether c multiplies p's operands as f32x2.
func (c *Config) isF32x2(p *Problem) bool {
	return c.Impl == CoopMat && p.DType == dtype.Float32
}

// An f32x2Layout is how rows of k elements are divided.
type f32x2Layout struct {
	kTiles        int // of c.BlockK elements
	chunk, chunks int
}

func (c *Config) f32x2Layout(k int) f32x2Layout {
	chunk := max(leastChunk, (k+mostChunks-1)/mostChunks)
	chunk = (chunk + 31) / 32 * 32
	return f32x2Layout{kTiles: (k + c.BlockK - 1) / c.BlockK, chunk: chunk, chunks: (k + chunk - 1) / chunk}
}

// amaxBytes returns the memory of the amax of rows, panelBytes the memory of their panels.
func (l f32x2Layout) amaxBytes(batches, rows int) int64 {
	return 4 * int64(batches) * int64(l.chunks) * int64(rows)
}

func (c *Config) panelBytes(l f32x2Layout, batches, rows int) int64 {
	return 4 * int64(c.BlockK) * int64(l.kTiles+1) * int64(batches) * int64(rows)
}

// f32x2Params is the push-constant block of shaders/lib/gemm_floats.glsl.
type f32x2Params struct {
	K       uint32      `glsl:"k"`
	Chunk   uint32      `glsl:"chunk"`
	Chunks  uint32      `glsl:"chunks"`
	KTiles  uint32      `glsl:"k_tiles"`
	TilesK  uint32      `glsl:"tiles_k"`
	AGroups uint32      `glsl:"a_groups"`
	Groups  uint32      `glsl:"groups"`
	A       f32x2Source `glsl:"a"`
	B       f32x2Source `glsl:"b"`
}

// f32x2Source is op(A), or op(B) transposed.
type f32x2Source struct {
	Rows    uint32 `glsl:"rows"`
	Offset  uint32 `glsl:"offset"` // elements, like the three that follow
	StrideB uint32 `glsl:"stride_b"`
	RowStep uint32 `glsl:"row_step"`
	KStep   uint32 `glsl:"k_step"`
	Amax    uint32 `glsl:"amax"`
	Panels  uint32 `glsl:"panels"`
}

// amaxSpec is the specialization of gemm_amax.comp.
type amaxSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
}

// f32x2Spec is the specialization of gemm_f32x2.comp.
type f32x2Spec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Depth         uint32 `glsl:"DEPTH"`
}

// An f32x2Operand says where the high and low parts of an operand lie.
type f32x2Operand struct {
	source   vk.Tensor
	batches  int // 1 where all products share a matrix
	rows     int // of op(A), columns of op(B)
	turned   bool
	amaxAt   int64 // in bytes, like panelsAt
	panelsAt int64
}

func (o *f32x2Operand) push() f32x2Source {
	rowStep, kStep := o.source.Strides[1], o.source.Strides[2]
	if o.turned {
		rowStep, kStep = kStep, rowStep
	}
	return f32x2Source{
		Rows: uint32(o.rows), Offset: uint32(o.source.Offset), StrideB: uint32(o.source.Strides[0]), RowStep: uint32(rowStep), KStep: uint32(kStep),
		Amax: uint32(o.amaxAt / 4), Panels: uint32(o.panelsAt / 16),
	}
}

// groups returns how many workgroups an operand takes with tilesK tiles in a row.
func (o *f32x2Operand) groups(tilesK int) int {
	return tilesK * o.batches * ((o.rows + f32x2Rows - 1) / f32x2Rows)
}

// panels returns the parts in the shape that the matrix kernel reads.
func (o *f32x2Operand) panels(memory *vk.Buffer, l f32x2Layout, line, batches int) vk.Tensor {
	t := vk.Tensor{
		Buffer: memory, DType: dtype.Float16, Shape: []int{batches, o.rows, l.kTiles * line},
		Strides: []int{0, o.rows, 1}, Offset: int(o.panelsAt/2) + o.rows*line, // after the exponents
	}
	if o.batches > 1 {
		t.Strides[0] = (l.kTiles + 1) * o.rows * line
	}
	return t
}

// split returns the steps that make high and low parts of A and B, in memory from byte at on, and
// the product that remains: of 16-bit operands in panels.
func (m *MemoryPlan) split(args Args, p Problem, config Config, memory *vk.Buffer, at int64) (steps.List, Args, Problem, Config) {
	memory, at = Region(memory, at, m.Partials)
	l := config.f32x2Layout(p.K)
	a := f32x2Operand{source: args.A, batches: p.Batches(), rows: p.M, turned: p.TransA, amaxAt: at + m.amaxA, panelsAt: at + m.a}
	b := f32x2Operand{source: args.B, batches: p.Batches(), rows: p.N, turned: !p.TransB, amaxAt: at + m.amaxB, panelsAt: at + m.b}
	for _, o := range []*f32x2Operand{&a, &b} {
		if o.source.Strides[0] == 0 {
			o.batches = 1
		}
	}
	const threads = 128
	list := steps.List{
		f32x2Step("gemm_amax", amaxSpec{threads}, l.chunks, 1, a, b, p, l, memory),
		// Two float16 for each element.
		f32x2Step("gemm_f32x2", f32x2Spec{threads, uint32(config.BlockK)}, (l.kTiles*config.BlockK+f32x2Columns-1)/f32x2Columns, 2, a, b, p, l, memory),
	}
	config.BlockK *= 2 // hi and lo
	args.K = p.K
	args.panel = config.BlockK
	args.A, args.B = a.panels(memory, l, args.panel, p.Batches()), b.panels(memory, l, args.panel, p.Batches())
	p.DType, p.K, p.TransA, p.TransB = dtype.Float16, l.kTiles*args.panel, false, true
	return list, args, p, config
}

// f32x2Step returns one of the kernels of split, with tilesK tiles in a row. Moves is how often
// it reads or writes the operands, for a note.
func f32x2Step(name string, spec any, tilesK, moves int, a, b f32x2Operand, p Problem, l f32x2Layout, memory *vk.Buffer) func(c *vk.Cmd) error {
	return func(c *vk.Cmd) error {
		kernel := chips.Kernel[f32x2Params](c, name, "", spec, vk.KernelOptions{})
		n := a.groups(tilesK) + b.groups(tilesK)
		groups := Grid(c, n, 1, "a copy as f32x2 of %v", p)
		c.Note(func() vk.Note {
			bytes := float64(moves) * vk.Traffic(a.source, b.source) // the amax are few
			return vk.Note{Text: fmt.Sprintf("%dx%d, %dx%d", p.M, p.K, p.K, p.N), Bytes: bytes}
		})
		kernel.Dispatch(c, groups, f32x2Params{
			K: uint32(p.K), Chunk: uint32(l.chunk), Chunks: uint32(l.chunks), KTiles: uint32(l.kTiles),
			TilesK: uint32(tilesK), AGroups: uint32(a.groups(tilesK)), Groups: uint32(n), A: a.push(), B: b.push(),
		}, a.source, b.source, vk.View(memory, dtype.Float32, int(memory.Bytes()/4)))
		return c.Err()
	}
}
