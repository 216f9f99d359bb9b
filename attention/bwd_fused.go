package attention

import (
	"math"
	"reflect"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// bwdFusedKernels names the kernel of each path that computes all gradients.
var bwdFusedKernels = [...]string{CoopMat2: "attention_bwd_fused_coopmat2", CoopMat: "attention_bwd_fused_coopmat"}

// fused reports whether one kernel computes all gradients.
func (c *BackwardConfig) fused() bool { return c.Fused != BackwardTile{} }

// fusedGroups is the least number of workgroups per compute unit into which shares of keys divide
// the work, if there are as many blocks. Two workgroups hide each other's latencies. Each more
// costs memory for a float32 dQ.
const fusedGroups = 2

// unknownUnits stands for the compute units of a device that does not report them.
const unknownUnits = 32

// shares returns the number of workgroups that divide the blocks of keys of a head, and the number
// of blocks. The device or batch*num_kv_heads bounds the number of workgroups, and with it the
// memory for dQ; the lengths of sequences do not.
func (c *BackwardConfig) shares(caps *vk.Caps, p *Problem) (shares, blocks int) {
	blocks = int(groups(p.SeqKV, c.Fused.owned(caps, c.Impl, p.DType)))
	most := c.Splits
	if most == 0 {
		units := int(caps.ComputeUnits)
		if units == 0 {
			units = unknownUnits
		}
		most = int(groups(fusedGroups*units, p.Batch*p.NumKVHeads))
	}
	rounds := int(groups(blocks, most))
	return int(groups(blocks, rounds)), blocks // fewer shares if these take as many rounds
}

// dqPartsShape returns the shape of part_dq of attention_bwd_fused_matrix.comp, nil if the kernel
// writes dQ itself.
func (c *BackwardConfig) dqPartsShape(caps *vk.Caps, p *Problem) []int {
	if !c.fused() {
		return nil
	}
	shares, blocks := c.shares(caps, p)
	shape, err := matrixShape(caps, c.Impl, p.DType)
	if blocks == 1 || err != nil {
		return nil
	}
	stream, n := c.Fused.Stream, int(shape.N)
	return []int{p.Batch, p.NumHeads, shares, (p.SeqQ + stream - 1) / stream * stream, (p.HeadDim + n - 1) / n * n}
}

// fusedTensors is the number of tensors of the kernel: backwardTensors and dq.
const fusedTensors = backwardTensors + 1

// feasibleFused is Feasible for a kernel that computes all gradients.
func (c *BackwardConfig) feasibleFused(caps *vk.Caps, p *Problem) error {
	t := c.Fused
	switch {
	case c.Impl != CoopMat2 && c.Impl != CoopMat || p.DType == dtype.Float32:
		return unsupported("%v: no kernel computes all gradients of %v at once", c.Impl, p.DType)
	case !p.Plain():
		return unsupported("%v: no kernel computes all gradients at once with %s", c.Impl, strings.Join(p.Features(), ", "))
	case c.Splits < 0:
		return unsupported("%v: splits=%d is negative", c.Impl, c.Splits)
	case caps.MaxStorageBuffers < fusedTensors:
		return unsupported("%v: all gradients at once take %d storage buffers, more than the device's %d", c.Impl, fusedTensors, caps.MaxStorageBuffers)
	}
	if n := uint32(reflect.TypeFor[bwdFusedParams]().Size()); n > caps.MaxPushConstantsBytes {
		return unsupported("%v: all gradients at once take %d bytes of push constants, more than the device's %d", c.Impl, n, caps.MaxPushConstantsBytes)
	}
	if err := t.feasibleMatrix(caps, c.Impl, *p); err != nil {
		return err
	}
	shape, err := matrixShape(caps, c.Impl, p.DType)
	if err != nil {
		return err
	}
	m, n, own := int(shape.M), int(shape.N), t.owned(caps, c.Impl, p.DType)
	switch {
	case own%n != 0:
		return unsupported("%v: a block of %d keys is not a multiple of the matrix size %d", c.Impl, own, n)
	case t.Stream%m != 0:
		return unsupported("%v: stream=%d is not a multiple of the matrix size %d", c.Impl, t.Stream, m)
	}
	row8 := (p.HeadDim + n - 1) / n * n / 8
	extra := own * (row8 + 1 + t.Stream/8 + 1) * 16 // keys and exchange, lib/bwd_fused_matrix.glsl
	if err := argument.FitsShared("attention", caps, c.Impl, t.matrixShared(c.Impl, m, n, *p)+extra); err != nil {
		return err
	}
	limit := min(caps.MaxStorageBufferRange, caps.MaxAllocationBytes)
	if bytes := workspaceBytes(c.workspaceShapes(caps, p)); uint64(bytes) > limit {
		return unsupported("%v: a workspace of %d bytes, dQ of shares of the keys among it, is more than the device's %d", c.Impl, bytes, limit)
	}
	return nil
}

// recordFused records the kernel that computes all gradients, or dK, dV and the parts of dQ of each
// share of the keys.
func (b *backward) recordFused() error {
	p, d := &b.p, b.c.Device()
	shares, blocks := b.config.shares(d.Caps(), p)
	if err := b.fits(uint32(shares), 1, p.NumKVHeads); err != nil {
		return err
	}
	matrix, err := b.matrixSpec(b.config.Fused, aligned(8, &b.dq, &b.dk, &b.dv, &b.q, &b.k, &b.v, &b.do))
	if err != nil {
		return err
	}
	kernel, err := newKernel[bwdFusedParams](d, bwdFusedKernels[b.config.Impl], p.DType.Short(), p, bwdFusedSpec{matrix, blocks == 1}, matrixKernelOptions(d))
	if err != nil {
		return err
	}
	params := bwdFusedParams{bwdParams: newBwdParams(b.do, b.q, b.k, b.v, *p)}
	params.DX, params.DV = placeOf(b.dk), placeOf(b.dv)
	dq := b.dqParts
	if blocks == 1 {
		dq = b.dq
	}
	params.DQ = placeOf(dq)
	b.inSteps(func(n uint32) {
		kernel.dispatch(b.c, vk.Groups{X: uint32(shares), Y: uint32(p.NumKVHeads), Z: n}, params, nil, b.q, b.k, b.v, b.do, b.rows, b.dk, b.dv, dq)
		params.skipBatches(p, n)
		params.DQ.skip(n)
	})
	return b.c.Err()
}

// fusedSumThreads is the workgroup size of attention_bwd_fused_sum.
const fusedSumThreads = 128

// recordFusedSum records attention_bwd_fused_sum, which adds the parts of dQ.
func (b *backward) recordFusedSum() error {
	p, d, parts := &b.p, b.c.Device(), &b.dqParts
	quads := int64(p.SeqQ) * int64(p.HeadDim/4)
	if quads > math.MaxUint32-fusedSumThreads {
		return unsupported("backward: seq_q=%d rows of %d columns are more than 2^32 by four", p.SeqQ, p.HeadDim)
	}
	workgroups := groups(int(quads), fusedSumThreads)
	if err := b.fits(workgroups, 1, p.NumHeads); err != nil {
		return err
	}
	module, err := shaders.Get("attention_bwd_fused_sum", p.DType.Short())
	if err != nil {
		return err
	}
	tile := &b.config.Fused
	kernel, err := vk.CachedKernel[bwdFusedSumParams](d, module.Name, module.SPIRV, bwdFusedSumSpec{
		WorkgroupSize: fusedSumThreads,
		HeadDim:       uint32(p.HeadDim),
		BlockM:        uint32(tile.owned(d.Caps(), b.config.Impl, p.DType)),
		Stream:        uint32(tile.Stream),
		Causal:        p.Causal,
	}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	params := bwdFusedSumParams{
		SeqQ: uint32(p.SeqQ), Shares: uint32(parts.Shape[2]),
		CausalShift: int32(p.Mask().Shift),
		Scale:       float32(p.EffectiveScale()),
		PartOffset:  uint32(parts.Offset / 4), PartStrideB: uint32(parts.Strides[0] / 4), PartStrideH: uint32(parts.Strides[1] / 4),
		PartStrideShare: uint32(parts.Strides[2] / 4), PartLD: uint32(parts.Strides[3] / 4),
		DQ: placeOf(b.dq),
	}
	b.inSteps(func(n uint32) {
		kernel.Dispatch(b.c, vk.Groups{X: workgroups, Y: uint32(p.NumHeads), Z: n}, params, b.dqParts, b.dq)
		params.PartOffset += n * params.PartStrideB
		params.DQ.skip(n)
	})
	return b.c.Err()
}

// inSteps calls record with as many batches at a time as the device allows in one dispatch.
func (b *backward) inSteps(record func(batches uint32)) {
	step := int(b.c.Device().Caps().MaxWorkgroupCount[2])
	for first := 0; first < b.p.Batch; first += step {
		record(uint32(min(step, b.p.Batch-first)))
	}
}

// bwdFusedParams is the push-constant block of lib/params_bwd.glsl with WITH_DQ.
type bwdFusedParams struct {
	bwdParams
	DQ place `glsl:"dq"`
}

// bwdFusedSpec is the specialization of attention_bwd_fused_matrix.comp.
type bwdFusedSpec struct {
	Matrix   bwdMatrixSpec
	OneBlock bool `glsl:"ONE_BLOCK"`
}

// bwdFusedSumParams is the push-constant block of attention_bwd_fused_sum.comp.
type bwdFusedSumParams struct {
	SeqQ            uint32  `glsl:"seq_q"`
	Shares          uint32  `glsl:"shares"`
	CausalShift     int32   `glsl:"causal_shift"`
	Scale           float32 `glsl:"scale"`
	PartOffset      uint32  `glsl:"part_offset"` // vec4
	PartStrideB     uint32  `glsl:"part_stride_b"`
	PartStrideH     uint32  `glsl:"part_stride_h"`
	PartStrideShare uint32  `glsl:"part_stride_share"`
	PartLD          uint32  `glsl:"part_ld"`
	DQ              place   `glsl:"dq"` // elements, like all that follow
}

// bwdFusedSumSpec is the specialization of attention_bwd_fused_sum.comp.
type bwdFusedSumSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	HeadDim       uint32 `glsl:"HEAD_DIM"`
	BlockM        uint32 `glsl:"BLOCK_M"`
	Stream        uint32 `glsl:"STREAM"`
	Causal        bool   `glsl:"CAUSAL"`
}
