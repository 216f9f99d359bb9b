package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// Float32 operands on matrices of float16 (f32x2). gemm_tops finds the largest magnitude (amax)
// of each row of op(A) and column of op(B). gemm_parts scales them by powers of two and divides
// every element into a high and a low float16. The matrix kernel multiplies these: three products
// for one, with the errors of float32 (shaders/lib/gemm_panels.glsl). Gemm_tops and gemm_parts
// read the operands once, whatever their layout. The matrix kernel reads the high and low parts
// once for each row or column of blocks, in k-tiles without gaps.

// A tile of gemm_parts is partsRows rows of partsColumns elements. A tile of gemm_tops is partsRows
// rows of a chunk. Short chunks make many workgroups; but gemm_parts reads the amax of all chunks
// of its rows.
const (
	partsRows    = 32
	partsColumns = 128
	leastChunk   = 128
	mostChunks   = 64
)

// From leastParts and leastPartsFLOPs on Auto prefers f32x2 to plain float32 arithmetic. Both
// operands are then read often enough to pay for the copies, and the product takes longer than
// starting two more kernels. Argued, not measured.
const (
	leastParts      = 64
	leastPartsFLOPs = 1 << 28
)

// inParts reports whether c multiplies p's operands as f32x2.
func (c *Config) inParts(p *Problem) bool {
	return c.Impl == CoopMat && p.DType == dtype.Float32
}

// A partsLayout is how rows of k elements are divided.
type partsLayout struct {
	kTiles        int // of c.BlockK elements
	chunk, chunks int
}

func (c *Config) partsLayout(k int) partsLayout {
	chunk := max(leastChunk, (k+mostChunks-1)/mostChunks)
	chunk = (chunk + 31) / 32 * 32
	return partsLayout{kTiles: (k + c.BlockK - 1) / c.BlockK, chunk: chunk, chunks: (k + chunk - 1) / chunk}
}

// topsBytes returns the memory of the amax of rows, partsBytes the memory of their panels.
func (l partsLayout) topsBytes(batches, rows int) int64 {
	return 4 * int64(batches) * int64(l.chunks) * int64(rows)
}

func (c *Config) partsBytes(l partsLayout, batches, rows int) int64 {
	return 4 * int64(c.BlockK) * int64(l.kTiles+1) * int64(batches) * int64(rows)
}

// partsParams is the push-constant block of shaders/lib/gemm_floats.glsl.
type partsParams struct {
	K       uint32      `glsl:"k"`
	Chunk   uint32      `glsl:"chunk"`
	Chunks  uint32      `glsl:"chunks"`
	KTiles  uint32      `glsl:"k_tiles"`
	TilesK  uint32      `glsl:"tiles_k"`
	AGroups uint32      `glsl:"a_groups"`
	Groups  uint32      `glsl:"groups"`
	A       partsSource `glsl:"a"`
	B       partsSource `glsl:"b"`
}

// partsSource is op(A), or op(B) transposed.
type partsSource struct {
	Rows    uint32 `glsl:"rows"`
	Offset  uint32 `glsl:"offset"` // elements, like the three that follow
	StrideB uint32 `glsl:"stride_b"`
	RowStep uint32 `glsl:"row_step"`
	KStep   uint32 `glsl:"k_step"`
	Tops    uint32 `glsl:"tops"`
	Parts   uint32 `glsl:"parts"`
}

// topsSpec is the specialization of gemm_tops.comp.
type topsSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
}

// partsSpec is the specialization of gemm_parts.comp.
type partsSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Depth         uint32 `glsl:"DEPTH"`
}

// An operandParts says where the high and low parts of an operand lie.
type operandParts struct {
	source  vk.Tensor
	batches int // 1 where all products share a matrix
	rows    int // of op(A), columns of op(B)
	turned  bool
	tops    int64 // in bytes, like parts
	parts   int64
}

func (o *operandParts) push() partsSource {
	rowStep, kStep := o.source.Strides[1], o.source.Strides[2]
	if o.turned {
		rowStep, kStep = kStep, rowStep
	}
	return partsSource{
		Rows: uint32(o.rows), Offset: uint32(o.source.Offset), StrideB: uint32(o.source.Strides[0]), RowStep: uint32(rowStep), KStep: uint32(kStep),
		Tops: uint32(o.tops / 4), Parts: uint32(o.parts / 16),
	}
}

// groups returns how many workgroups an operand takes with tilesK tiles in a row.
func (o *operandParts) groups(tilesK int) int {
	return tilesK * o.batches * ((o.rows + partsRows - 1) / partsRows)
}

// panels returns the parts in the shape that the matrix kernel reads.
func (o *operandParts) panels(memory *vk.Buffer, l partsLayout, line, batches int) vk.Tensor {
	t := vk.Tensor{
		Buffer: memory, DType: dtype.Float16, Shape: []int{batches, o.rows, l.kTiles * line},
		Strides: []int{0, o.rows, 1}, Offset: int(o.parts/2) + o.rows*line, // after the exponents
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
	l := config.partsLayout(p.K)
	a := operandParts{source: args.A, batches: p.Batches(), rows: p.M, turned: p.TransA, tops: at + m.topsA, parts: at + m.a}
	b := operandParts{source: args.B, batches: p.Batches(), rows: p.N, turned: !p.TransB, tops: at + m.topsB, parts: at + m.b}
	for _, o := range []*operandParts{&a, &b} {
		if o.source.Strides[0] == 0 {
			o.batches = 1
		}
	}
	const threads = 128
	list := steps.List{
		partsStep("gemm_tops", topsSpec{threads}, l.chunks, 1, a, b, p, l, memory),
		// Two float16 for each element.
		partsStep("gemm_parts", partsSpec{threads, uint32(config.BlockK)}, (l.kTiles*config.BlockK+partsColumns-1)/partsColumns, 2, a, b, p, l, memory),
	}
	config.BlockK *= 2 // hi and lo
	args.K = p.K
	args.panel = config.BlockK
	args.A, args.B = a.panels(memory, l, args.panel, p.Batches()), b.panels(memory, l, args.panel, p.Batches())
	p.DType, p.K, p.TransA, p.TransB = dtype.Float16, l.kTiles*args.panel, false, true
	return list, args, p, config
}

// partsStep returns one of the kernels of split, with tilesK tiles in a row. Moves is how often
// it reads or writes the operands, for a note.
func partsStep(name string, spec any, tilesK, moves int, a, b operandParts, p Problem, l partsLayout, memory *vk.Buffer) func(c *vk.Cmd) error {
	return func(c *vk.Cmd) error {
		kernel, err := chips.Kernel[partsParams](c.Device(), name, "", spec, vk.KernelOptions{})
		if err != nil {
			return err
		}
		n := a.groups(tilesK) + b.groups(tilesK)
		groups, err := Grid(c, n, 1, "a division into parts of %v", p)
		if err != nil {
			return err
		}
		c.Note(func() vk.Note {
			bytes := float64(moves) * vk.Traffic(a.source, b.source) // the amax are few
			return vk.Note{Text: fmt.Sprintf("%dx%d, %dx%d", p.M, p.K, p.K, p.N), Bytes: bytes}
		})
		kernel.Dispatch(c, groups, partsParams{
			K: uint32(p.K), Chunk: uint32(l.chunk), Chunks: uint32(l.chunks), KTiles: uint32(l.kTiles),
			TilesK: uint32(tilesK), AGroups: uint32(a.groups(tilesK)), Groups: uint32(n), A: a.push(), B: b.push(),
		}, a.source, b.source, vk.View(memory, dtype.Float32, int(memory.Bytes()/4)))
		return c.Err()
	}
}
