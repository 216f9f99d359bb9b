package attention

import (
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// bwdDeltaParams is the push-constant block of attention_bwd_delta.comp.
type bwdDeltaParams struct {
	SeqQ        uint32 `glsl:"seq_q"`
	RowsOffset  uint32 `glsl:"rows_offset"` // pairs
	RowsStrideB uint32 `glsl:"rows_stride_b"`
	RowsStrideH uint32 `glsl:"rows_stride_h"`
	OOffset     uint32 `glsl:"o_offset"` // elements, like all that follow
	OStrideB    uint32 `glsl:"o_stride_b"`
	OStrideH    uint32 `glsl:"o_stride_h"`
	OStrideS    uint32 `glsl:"o_stride_s"`
	DOOffset    uint32 `glsl:"do_offset"`
	DOStrideB   uint32 `glsl:"do_stride_b"`
	DOStrideH   uint32 `glsl:"do_stride_h"`
	DOStrideS   uint32 `glsl:"do_stride_s"`
	LSEOffset   uint32 `glsl:"lse_offset"`
	LSEStrideB  uint32 `glsl:"lse_stride_b"`
	LSEStrideH  uint32 `glsl:"lse_stride_h"`
	LSEStrideS  uint32 `glsl:"lse_stride_s"`
	DLSEOffset  uint32 `glsl:"dlse_offset"`
	DLSEStrideB uint32 `glsl:"dlse_stride_b"`
	DLSEStrideH uint32 `glsl:"dlse_stride_h"`
	DLSEStrideS uint32 `glsl:"dlse_stride_s"`
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
	// deltaThreads is the workgroup of attention_bwd_delta: what every device
	// allows.
	deltaThreads = 128
	// deltaTeam invocations of it share a row: with head_dim 64 each has two
	// loads of 16 bytes of float32, and neighbours read neighbouring addresses.
	deltaTeam = 8
)

// recordDelta records attention_bwd_delta, which writes lse2 and Delta - dLSE of
// each row.
func recordDelta(c *vk.Cmd, rows, do, o, lse, dlse vk.Tensor, p Problem) error {
	if p.Varlen.On {
		p.Batch, p.SeqQ = 1, p.Varlen.TotalQ // all rows are alike, those of no sequence too
		do, o, lse, dlse = unpack(do, &p), unpack(o, &p), unpack(lse, &p), unpack(dlse, &p)
	}
	d := c.Device()
	limit := d.Caps().MaxWorkgroupCount
	blocks := groups(p.SeqQ, deltaThreads/deltaTeam)
	if blocks > limit[0] || p.NumHeads > int(limit[1]) {
		return unsupported("backward: seq_q=%d in num_heads=%d make more workgroups than the device's %d by %d", p.SeqQ, p.NumHeads, limit[0], limit[1])
	}
	module, err := shaders.Get("attention_bwd_delta", p.DType.Short())
	if err != nil {
		return err
	}
	kernel, err := vk.CachedKernel[bwdDeltaParams](d, module.Name, module.SPIRV, bwdDeltaSpec{
		WorkgroupSize: deltaThreads,
		Team:          deltaTeam,
		HeadDim:       uint32(p.ValueHeadDim()),
		Aligned:       aligned(4, &o, &do),
		ReadDLSE:      !dlse.IsZero(),
	}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	params := bwdDeltaParams{
		SeqQ:        uint32(p.SeqQ),
		RowsStrideB: uint32(p.NumHeads * p.SeqQ), RowsStrideH: uint32(p.SeqQ),
		OOffset: uint32(o.Offset), OStrideB: uint32(o.Strides[0]), OStrideH: uint32(o.Strides[1]), OStrideS: uint32(o.Strides[2]),
		DOOffset: uint32(do.Offset), DOStrideB: uint32(do.Strides[0]), DOStrideH: uint32(do.Strides[1]), DOStrideS: uint32(do.Strides[2]),
		LSEOffset: uint32(lse.Offset), LSEStrideB: uint32(lse.Strides[0]), LSEStrideH: uint32(lse.Strides[1]), LSEStrideS: uint32(lse.Strides[2]),
	}
	if dlse.IsZero() {
		dlse = lse // a binding must hold something; the kernel does not read it
	} else {
		params.DLSEOffset, params.DLSEStrideB, params.DLSEStrideH, params.DLSEStrideS = uint32(dlse.Offset), uint32(dlse.Strides[0]), uint32(dlse.Strides[1]), uint32(dlse.Strides[2])
	}
	step := int(limit[2])
	for first := 0; first < p.Batch; first += step {
		n := uint32(min(step, p.Batch-first))
		kernel.Dispatch(c, vk.Groups{X: blocks, Y: uint32(p.NumHeads), Z: n}, params, o, do, lse, dlse, rows)
		params.RowsOffset += n * params.RowsStrideB
		params.OOffset += n * params.OStrideB
		params.DOOffset += n * params.DOStrideB
		params.LSEOffset += n * params.LSEStrideB
		params.DLSEOffset += n * params.DLSEStrideB
	}
	return c.Err()
}
