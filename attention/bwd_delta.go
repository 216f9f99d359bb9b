package attention

import "github.com/flashvk/flashvk/vk"

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
		p.Batch, p.SeqQ = 1, p.Varlen.TotalQ // all rows are alike, those of no sequence too
		do, o, lse, dlse = unpack(do, &p), unpack(o, &p), unpack(lse, &p), unpack(dlse, &p)
	}
	d := c.Device()
	limit := d.Caps().MaxWorkgroupCount
	blocks := groups(p.SeqQ, deltaThreads/deltaTeam)
	if blocks > limit[0] || p.NumHeads > int(limit[1]) {
		return unsupported("backward: seq_q=%d in num_heads=%d make more workgroups than the device's %d by %d", p.SeqQ, p.NumHeads, limit[0], limit[1])
	}
	kernel, err := cached[bwdDeltaParams](d, "attention_bwd_delta", p.DType.Short(), bwdDeltaSpec{
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
		O: placeOf(o), DO: placeOf(do), LSE: placeOf(lse), DLSE: placeOf(dlse),
	}
	dlse = orElse(dlse, lse) // which the kernel does not read then
	step := int(limit[2])
	for first := 0; first < p.Batch; first += step {
		n := uint32(min(step, p.Batch-first))
		kernel.Dispatch(c, vk.Groups{X: blocks, Y: uint32(p.NumHeads), Z: n}, params, o, do, lse, dlse, rows)
		params.RowsOffset += n * params.RowsStrideB
		for _, x := range []*place{&params.O, &params.DO, &params.LSE, &params.DLSE} {
			x.skip(n)
		}
	}
	return c.Err()
}
