package attention

import (
	"fmt"
	"math/bits"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// checkQuant checks Quant.
func (p Problem) checkQuant() error {
	switch p.Quant {
	case dtype.NoQuant:
		return nil
	case dtype.QuantInt8, dtype.QuantE4M3:
	default:
		return fmt.Errorf("attention: quant=%v is not one of none, int8, e4m3", p.Quant)
	}
	if p.DType == dtype.Float32 {
		return fmt.Errorf("attention: quant=%v of float32 tensors: it takes float16 or bfloat16", p.Quant)
	}
	return nil
}

// Smooth reports whether the mean key is subtracted before keys are quantized: not with Softcap,
// behind which scores that differ by a constant have other weights.
func (p Problem) Smooth() bool { return p.Quant != dtype.NoQuant && p.Softcap == 0 }

const (
	// quantThreads are the invocations of a workgroup of attention_quantize at most, a power of two.
	quantThreads = 256
	// chunkKeys is the least number of keys whose totals a workgroup computes, and maxChunks the largest
	// number of totals of a head, which one workgroup adds up.
	chunkKeys, maxChunks = 256, 16
	// quantPad is how many rows of Q, and keys, kernels may read past the last one.
	quantPad = 512
)

// cells says how the elements of a row lie: a kernel loads them in runs of 8, or on matrices of 8
// columns each run from 16 bytes of its own.
type cells struct{ runs, spread int }

// scalarCells returns how the scalar kernel has the rows: whole words of 16 bytes.
func scalarCells(headDim int) cells { return cells{(headDim + 15) / 16 * 2, 1} }

// matrixCells returns how the kernels on matrices have the rows: whole matrices k columns wide.
func matrixCells(headDim, k int) cells {
	return cells{(headDim + k - 1) / k * k / 8, max(16/k, 1)}
}

func (c cells) rowBytes() int { return c.runs * c.spread * 8 }

// quantTensors are Q and K as attention_quantize writes them, and their scales.
type quantTensors struct {
	q, k, qRows, kScales vk.Tensor
	depth                uint32 // of the products of int8 on matrices
}

// fwdMatrixQuantSpec is fwdMatrixSpec with QUANT.
type fwdMatrixQuantSpec struct {
	fwdMatrixSpec
	MatK uint32 `glsl:"MAT_K"`
}

// fwdScalarQuantSpec is fwdScalarSpec with QUANT.
type fwdScalarQuantSpec struct {
	fwdScalarSpec
	Format uint32 `glsl:"FORMAT"`
}

// steps of attention_quantize.comp.
const (
	quantSums = iota
	quantHeads
	quantKeys
	quantRows
)

// quantSpec is the specialization of attention_quantize.comp.
type quantSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Step          uint32 `glsl:"STEP"`
	Smooth        bool   `glsl:"SMOOTH"`
	Cols8         uint32 `glsl:"COLS8"`
	Spread        uint32 `glsl:"SPREAD"`
	Format        uint32 `glsl:"FORMAT"`
	Aligned       bool   `glsl:"ALIGNED"`
}

// quantize records the kernels that make Q and K elements of 8 bits, in memory of c: those of f from
// then on.
func (f *forward) quantize() error {
	c, p, t := f.c, &f.p, &f.quant
	cells := scalarCells(p.HeadDim)
	if onMatrices(f.config.Impl) {
		shape, err := quantShape(c.Device().Caps(), f.config.Impl, p)
		if err != nil {
			return err
		}
		t.depth, cells = shape.K, matrixCells(p.HeadDim, int(shape.K))
	}
	chunks, width := min((p.SeqKV+chunkKeys-1)/chunkKeys, maxChunks), 3*p.HeadDim+4
	sums := vk.View(c.Scratch("attention.quant.sums", 4*int64(p.Batch*p.NumKVHeads*(chunks+1)*width)), dtype.Float32, p.Batch, p.NumKVHeads, chunks+1, width)
	t.q, t.qRows = f.quantRows("q", &f.q, cells, 2)
	t.k, t.kScales = f.quantRows("k", &f.k, cells, 1)
	if err := c.Err(); err != nil {
		return err
	}
	params := f.params(chunks)
	params.V, params.O = placeOf(t.k), placeOf(t.q)
	params.LSE = place{StrideB: uint32(p.NumKVHeads), StrideH: 1} // heads of sums
	threads := int(min(quantThreads, c.Device().Caps().MaxWorkgroupInvocations))
	rows := min(threads, 1<<bits.Len(uint(QuantKeys*p.HeadDim/(8*quantRuns(p.HeadDim))-1))) // each with quantRuns runs
	spec := quantSpec{HeadDim: uint32(p.HeadDim), Smooth: p.Smooth(), Cols8: uint32(cells.runs), Spread: uint32(cells.spread), Format: uint32(p.Quant)}
	for _, step := range []struct {
		step, threads, groups, heads int
		x, y, values                 *vk.Tensor
	}{
		{quantSums, threads, chunks, p.NumKVHeads, &f.k, &t.k, &t.kScales},
		{quantHeads, threads, 1, p.NumKVHeads, &f.q, &t.k, &t.kScales},
		{quantKeys, rows, (p.SeqKV + QuantKeys - 1) / QuantKeys, p.NumKVHeads, &f.k, &t.k, &t.kScales},
		{quantRows, rows, (p.SeqQ + QuantKeys - 1) / QuantKeys, p.NumHeads, &f.q, &t.q, &t.qRows},
	} {
		spec.WorkgroupSize, spec.Step, spec.Aligned = uint32(step.threads), uint32(step.step), argument.Aligned(8, *step.x)
		kernel := newKernel[fwdParams](c, "attention_quantize", p.DType.Short(), p, spec, vk.KernelOptions{})
		if most := c.Device().Caps().MaxWorkgroupCount[0]; step.groups > int(most) {
			return unsupported("quant=%v: seq_q=%d, seq_kv=%d make %d blocks, more than the device's %d workgroups", p.Quant, p.SeqQ, p.SeqKV, step.groups, most)
		}
		f.overBatches(params, func(n uint32, params fwdParams, features *boundFeatures) {
			kernel.dispatch(c, vk.Groups{X: uint32(step.groups), Y: uint32(step.heads), Z: n}, params, features, *step.x, *step.y, *step.values, sums)
		})
	}
	f.q, f.k = t.q, t.k
	return c.Err()
}

// quantRuns returns how many runs of 8 columns of a row an invocation mixes.
func quantRuns(headDim int) int {
	return min(4, headDim/8&-(headDim/8))
}

// quantRows returns memory for the rows of Q or K in 8 bits, and for the given count of numbers of each row.
func (f *forward) quantRows(name string, x *vk.Tensor, cells cells, numbers int) (rows, values vk.Tensor) {
	batch, heads, seq := x.Shape[0], x.Shape[1], x.Shape[2]
	if f.p.Varlen.On {
		batch = 1 // all sequences
	}
	n, bytes := batch*heads*seq+quantPad, cells.rowBytes()
	rows = vk.View(f.c.Scratch("attention.quant."+name, int64(n*bytes)), dtype.Int8, n, bytes)
	values = vk.View(f.c.Scratch("attention.quant.scales."+name, int64(4*n*numbers)), dtype.Float32, n, numbers)
	rows.Shape, rows.Strides = []int{x.Shape[0], heads, seq, bytes}, []int{heads * seq * bytes, seq * bytes, bytes, 1}
	if f.p.Varlen.On {
		rows.Strides[0] = 0
	}
	return rows, values
}
