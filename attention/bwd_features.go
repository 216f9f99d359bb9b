package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// bwdHeadsParams is the push-constant block of lib/params_bwd.glsl with BY_HEAD.
type bwdHeadsParams struct {
	SeqQ    uint32 `glsl:"seq_q"`
	SeqKV   uint32 `glsl:"seq_kv"`
	Batches uint32 `glsl:"batches"`
	First   uint32 `glsl:"first"`
	bwdInputs
	Out place `glsl:"out"`
}

// bwdDBiasSpec is the specialization of attention_bwd_dbias.comp.
type bwdDBiasSpec struct {
	tileSpec
	HeadDim    uint32 `glsl:"HEAD_DIM"`
	Aligned    bool   `glsl:"ALIGNED"`
	SumBatches bool   `glsl:"SUM_BATCHES"`
	SumHeads   bool   `glsl:"SUM_HEADS"`
	SumRows    bool   `glsl:"SUM_ROWS"`
}

// bwdDSinksSpec is the specialization of attention_bwd_dsinks.comp.
type bwdDSinksSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Chunk         uint32 `glsl:"CHUNK"`
}

// bwdSumParams is the push-constant block of attention_bwd_sum.comp.
type bwdSumParams struct {
	N           uint32 `glsl:"n"`
	TermsI      uint32 `glsl:"terms_i"`
	TermsJ      uint32 `glsl:"terms_j"`
	PartOffset  uint32 `glsl:"part_offset"` // elements, like all that follow
	PartStrideB uint32 `glsl:"part_stride_b"`
	PartStrideH uint32 `glsl:"part_stride_h"`
	PartStrideX uint32 `glsl:"part_stride_x"`
	PartStrideI uint32 `glsl:"part_stride_i"`
	PartStrideJ uint32 `glsl:"part_stride_j"`
	OutOffset   uint32 `glsl:"out_offset"`
	OutStrideB  uint32 `glsl:"out_stride_b"`
	OutStrideH  uint32 `glsl:"out_stride_h"`
}

// bwdSumSpec is the specialization of attention_bwd_sum.comp.
type bwdSumSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	ToF32         bool   `glsl:"TO_F32"`
}

const (
	// sumThreads is the workgroup size of attention_bwd_sum and attention_bwd_dsinks: every device
	// allows it.
	sumThreads = 128
	// A workgroup of attention_bwd_dsinks sums sinkChunk rows, 16 per invocation.
	sinkChunk = 2048
)

// biasTile is the tile of attention_bwd_dbias on every path. It fits Vulkan's guaranteed 16 KiB.
var biasTile = BackwardTile{Threads: 128, ThreadsX: 16, BlockM: 32, BlockN: 32, Depth: 32, StageRows: 4}

// featureSteps returns the kernels of the gradients of features that the call wants, side by side,
// then the sums of their parts.
func (b *backward) featureSteps() steps.List {
	g := b.gradients
	var dbias, dsinks steps.List
	if b.p.Bias.On && !g.DBias.IsZero() && !b.config.biasOfStored(&b.p) {
		dbias = append(dbias, func(*vk.Cmd) error { return b.recordDBias(g.DBias) })
		if !b.p.Bias.Rows {
			dbias = append(dbias, func(*vk.Cmd) error { return b.recordDBiasSum(g.DBias) })
		}
	}
	if b.p.Sinks && !g.DSinks.IsZero() {
		dsinks = steps.List{
			func(*vk.Cmd) error { return b.recordDSinks() },
			func(*vk.Cmd) error { return b.recordDSinksSum(g.DSinks) },
		}
	}
	return steps.Together(dbias, dsinks)
}

// headsParams fills the block for all batches, except for the output.
func (b *backward) headsParams() bwdHeadsParams {
	x := newBwdParams(b.do, b.q, b.k, b.v, b.p)
	return bwdHeadsParams{
		SeqQ: x.SeqQ, SeqKV: x.SeqKV, Batches: uint32(b.p.Batch), bwdInputs: x.bwdInputs,
	}
}

// recordDBias records the kernel that computes the gradient of the bias, or its biasParts.
func (b *backward) recordDBias(dbias vk.Tensor) error {
	p, bias := &b.p, &b.p.Bias
	kernel := newKernel[bwdHeadsParams](b.c, "attention_bwd_dbias", p.DType.Short(), p, bwdDBiasSpec{
		tileSpec: biasTile.spec(), HeadDim: uint32(p.HeadDim), Aligned: argument.Aligned(4, b.q, b.k, b.v, b.do),
		SumBatches: bias.Rows && !bias.Batch, SumHeads: bias.Rows && !bias.Heads, SumRows: !bias.Rows,
	}, vk.KernelOptions{})
	out, rowGroups := dbias, groups(p.SeqQ, biasTile.BlockM)
	if !bias.Rows {
		out, rowGroups = b.biasParts, 1
	}
	heads := out.Shape[0] * out.Shape[1]
	b.fits(groups(p.SeqKV, biasTile.BlockN), rowGroups, p.NumHeads)
	params, features := b.headsParams(), b.features()
	params.Out = placeOf(out)
	inSteps(b.c.Device(), heads, func(first, n uint32) {
		params.First = first
		kernel.dispatch(b.c, vk.Groups{X: groups(p.SeqKV, biasTile.BlockN), Y: rowGroups, Z: n}, params, features, b.q, b.k, b.v, b.do, b.rows, out)
	})
	return b.c.Err()
}

// recordDBiasSum records the sums of biasParts.
func (b *backward) recordDBiasSum(dbias vk.Tensor) error {
	p, bias, out := &b.p, &b.p.Bias, b.biasParts
	sum := bwdSumParams{N: uint32(p.SeqKV), TermsI: 1, TermsJ: 1, PartOffset: uint32(out.Offset), PartStrideX: 1}
	strideB, strideH := uint32(out.Strides[0]), uint32(out.Strides[1])
	sum.PartStrideB, sum.PartStrideH, sum.PartStrideI, sum.PartStrideJ = strideB, strideH, strideB, strideH
	if !bias.Batch {
		sum.TermsI = uint32(p.Batch)
	}
	if !bias.Heads {
		sum.TermsJ = uint32(p.NumHeads)
	}
	return b.recordSum(sum, b.biasParts, dbias)
}

// recordDSinks records the kernel that computes parts of the gradient of the sinks.
func (b *backward) recordDSinks() error {
	p := &b.p
	kernel := newKernel[bwdHeadsParams](b.c, "attention_bwd_dsinks", "", p, bwdDSinksSpec{sumThreads, sinkChunk}, vk.KernelOptions{})
	chunks := groups(p.SeqQ, sinkChunk)
	b.fits(chunks, 1, p.NumHeads)
	params, features := b.headsParams(), b.features()
	params.Out = placeOf(b.sinkParts)
	inSteps(b.c.Device(), p.Batch, func(first, n uint32) {
		kernel.dispatch(b.c, vk.Groups{X: chunks, Y: uint32(p.NumHeads), Z: n}, params, features, b.rows, b.sinkParts)
		params.RowsOffset += n * rowsStrideB(p)
		params.Out.skip(n)
		features.skip(p, first, n)
	})
	return b.c.Err()
}

// recordDSinksSum records the sums of sinkParts.
func (b *backward) recordDSinksSum(dsinks vk.Tensor) error {
	p, out := &b.p, dsinks
	// Heads lie along axis x of the sum.
	out.Shape, out.Strides = []int{1, 1, p.NumHeads}, []int{0, 0, 1}
	return b.recordSum(bwdSumParams{
		N: uint32(p.NumHeads), TermsI: uint32(p.Batch), TermsJ: groups(p.SeqQ, sinkChunk),
		PartOffset: uint32(b.sinkParts.Offset), PartStrideX: uint32(b.sinkParts.Strides[1]),
		PartStrideI: uint32(b.sinkParts.Strides[0]), PartStrideJ: 1,
	}, b.sinkParts, out)
}

// recordSum records attention_bwd_sum of parts into out, whose first axes are batches
// and heads.
func (b *backward) recordSum(params bwdSumParams, parts, out vk.Tensor) error {
	kernel := chips.Kernel[bwdSumParams](b.c, "attention_bwd_sum", b.p.DType.Short(), bwdSumSpec{sumThreads, out.DType == dtype.Float32}, vk.KernelOptions{})
	blocks, batches, heads := groups(int(params.N), sumThreads), out.Shape[0], out.Shape[1]
	b.fits(blocks, 1, heads)
	params.OutOffset, params.OutStrideB, params.OutStrideH = uint32(out.Offset), uint32(out.Strides[0]), uint32(out.Strides[1])
	inSteps(b.c.Device(), batches, func(_, n uint32) {
		kernel.Dispatch(b.c, vk.Groups{X: blocks, Y: uint32(heads), Z: n}, params, parts, out)
		params.PartOffset += n * params.PartStrideB
		params.OutOffset += n * params.OutStrideB
	})
	return b.c.Err()
}

// bwdDeltaParams is the push-constant block of attention_bwd_delta.comp.
type bwdDeltaParams struct {
	SeqQ        uint32 `glsl:"seq_q"`
	RowsOffset  uint32 `glsl:"rows_offset"` // pairs
	RowsStrideB uint32 `glsl:"rows_stride_b"`
	RowsStrideH uint32 `glsl:"rows_stride_h"`
	O           place  `glsl:"o"` // elements, like all that follow
	DO          place  `glsl:"do"`
	LSE         place  `glsl:"lse"`
	DLSE        place  `glsl:"dlse"`
}

// bwdDeltaSpec is the specialization of attention_bwd_delta.comp.
type bwdDeltaSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Team          uint32 `glsl:"TEAM"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	Aligned       bool   `glsl:"ALIGNED"`
	ReadDLSE      bool   `glsl:"READ_DLSE"`
}

const (
	// deltaThreads is the workgroup size of attention_bwd_delta: every device allows it.
	deltaThreads = 128
	// deltaTeam invocations share a row: with head_dim 64 each has two loads of 16 bytes of
	// float32, and neighbours read neighbouring addresses.
	deltaTeam = 8
)

// recordDelta records attention_bwd_delta, which writes lse2 and Delta - dLSE of each row.
func recordDelta(c *vk.Cmd, rows, do, o, lse, dlse vk.Tensor, p Problem) error {
	if p.Varlen.On {
		p.Batch, p.SeqQ = 1, p.Varlen.TotalQ // all rows are alike, rows of no sequence too
		do, o, lse, dlse = unpack(do, &p), unpack(o, &p), unpack(lse, &p), unpack(dlse, &p)
	}
	d := c.Device()
	limit := d.Caps().MaxWorkgroupCount
	blocks := groups(p.SeqQ, deltaThreads/deltaTeam)
	if blocks > limit[0] || p.NumHeads > int(limit[1]) {
		return unsupported("backward: seq_q=%d in num_heads=%d make more workgroups than the device's %d by %d", p.SeqQ, p.NumHeads, limit[0], limit[1])
	}
	kernel := chips.Kernel[bwdDeltaParams](c, "attention_bwd_delta", p.DType.Short(), bwdDeltaSpec{
		WorkgroupSize: deltaThreads,
		Team:          deltaTeam,
		HeadDim:       uint32(p.ValueHeadDim()),
		Aligned:       argument.Aligned(4, o, do),
		ReadDLSE:      !dlse.IsZero(),
	}, vk.KernelOptions{})
	params := bwdDeltaParams{
		SeqQ:        uint32(p.SeqQ),
		RowsStrideB: uint32(p.NumHeads * p.SeqQ), RowsStrideH: uint32(p.SeqQ),
		O: placeOf(o), DO: placeOf(do), LSE: placeOf(lse), DLSE: placeOf(dlse),
	}
	dlse = orElse(dlse, lse) // which the kernel does not read then
	inSteps(d, p.Batch, func(_, n uint32) {
		kernel.Dispatch(c, vk.Groups{X: blocks, Y: uint32(p.NumHeads), Z: n}, params, o, do, lse, dlse, rows)
		params.RowsOffset += n * params.RowsStrideB
		for _, x := range []*place{&params.O, &params.DO, &params.LSE, &params.DLSE} {
			x.skip(n)
		}
	})
	return c.Err()
}
