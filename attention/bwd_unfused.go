package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// unfusedKeysSpec is the specialization of attention_unfused_keys.comp.
type unfusedKeysSpec struct {
	blockSpec
	Dim     uint32 `glsl:"DIM"`
	Aligned bool   `glsl:"ALIGNED"`
}

type unfusedBwdKernels struct {
	scores     kernel[bwdHeadsParams]
	dq, dk, dv kernel[unfusedParams]
}

// hideUnseenKeys turns on features, of which a window that hides nothing, where a
// plain problem has keys that no row sees: kernels without features would multiply
// them by weights of 0, and they may be NaN.
func hideUnseenKeys(p Problem) Problem {
	if p.Plain() && p.Causal && p.CausalAlign == TopLeft && p.SeqKV > p.SeqQ {
		p.Window = Window{On: true, Left: Unlimited, Right: Unlimited}
	}
	return p
}

// recordUnfused records the backward pass as kernels with W and dX in memory that c
// owns: W = exp(S - LSE) and dX = Scale * W * (dO * Vᵀ - Delta), then dQ = dX * K, dK =
// dXᵀ * Q and dV = Wᵀ * dO.
func (b *backward) recordUnfused() error {
	b.p = hideUnseenKeys(b.p)
	p, caps := &b.p, b.c.Device().Caps()
	perKV := p.NumHeads / p.NumKVHeads
	groupBytes := 4 * int64(perKV) * int64(p.SeqQ) * int64(p.SeqKV)
	if limit := min(int64(caps.MaxStorageBufferRange), int64(caps.MaxAllocationBytes)); groupBytes > limit {
		return unsupported("unfused: the weights of %d heads that share keys, seq_q=%d by seq_kv=%d, take %d bytes, more than the device's %d",
			perKV, p.SeqQ, p.SeqKV, groupBytes, limit)
	}
	rowTile, keyTile := &b.config.DQ, &b.config.DKV
	rowGroups, colGroups, keyGroups := groups(p.SeqQ, rowTile.BlockM), groups(p.SeqKV, rowTile.BlockN), groups(p.SeqKV, keyTile.BlockM)
	limit := caps.MaxWorkgroupCount
	if max(colGroups, keyGroups) > limit[0] || rowGroups > min(limit[0], limit[1]) {
		return unsupported("unfused: seq_q=%d by seq_kv=%d makes more tiles than the device's %d by %d workgroups", p.SeqQ, p.SeqKV, limit[0], limit[1])
	}
	if perKV > int(limit[2]) {
		return unsupported("unfused: %d heads that share keys are more than the device's %d workgroups", perKV, limit[2])
	}
	kernels := b.newUnfusedKernels()
	keyHeads := p.Batch * p.NumKVHeads
	step := min(keyHeads, int(limit[2])/perKV, max(1, int(unfusedScoreBytes/groupBytes)))
	scratch := func(name string) vk.Tensor {
		buffer := b.c.Scratch(name, int64(step)*groupBytes)
		return vk.Tensor{Buffer: buffer, DType: dtype.Float32, Shape: []int{step * int(groupBytes/4)}, Strides: []int{1}}
	}
	w, dx := scratch("attention.unfused.W"), scratch("attention.unfused.dX")
	if err := b.c.Err(); err != nil {
		return err
	}
	scores, features := b.headsParams(), b.features()
	params := unfusedParams{
		SeqQ: scores.SeqQ, SeqKV: scores.SeqKV, NumHeads: uint32(p.NumHeads), HeadsPerKV: scores.HeadsPerKV,
		CausalShift: scores.CausalShift, ScaleLog2: scores.ScaleLog2,
	}
	for first := 0; first < keyHeads; first += step {
		n := min(step, keyHeads-first)
		scores.First = uint32(first * perKV)
		params.FirstHead = scores.First
		heads := uint32(n * perKV)
		kernels.scores.dispatch(b.c, vk.Groups{X: colGroups, Y: rowGroups, Z: heads}, scores, features, b.q, b.k, b.v, b.do, b.rows, w, dx)
		params.A, params.B = placeOf(b.dq), placeOf(b.k)
		kernels.dq.dispatch(b.c, vk.Groups{X: rowGroups, Z: heads}, params, features, b.dq, b.k, dx)
		params.A, params.B = placeOf(b.dk), placeOf(b.q)
		kernels.dk.dispatch(b.c, vk.Groups{X: keyGroups, Z: uint32(n)}, params, features, b.dk, b.q, dx)
		params.A, params.B = placeOf(b.dv), placeOf(b.do)
		kernels.dv.dispatch(b.c, vk.Groups{X: keyGroups, Z: uint32(n)}, params, features, b.dv, b.do, w)
	}
	return b.c.Err()
}

func (b *backward) newUnfusedKernels() (u unfusedBwdKernels) {
	p, rowTile, none := &b.p, &b.config.DQ, vk.KernelOptions{}
	u.scores = newKernel[bwdHeadsParams](b.c, "attention_unfused_bwd_scores", p.DType.Short(), p, unfusedScoresSpec{
		tileSpec: rowTile.spec(), HeadDim: uint32(p.HeadDim), Causal: p.Causal, Aligned: argument.Aligned(4, b.q, b.k, b.v, b.do),
	}, none)
	values := newFeatureSpec(p)
	values.ValueDim = uint32(p.HeadDim) // of dQ and K, which are O and V here
	u.dq.kernelOf = newKernelOf[unfusedParams, unfusedParams](b.c, moduleOf("attention_unfused_values", p), p.DType.Short(), p.Plain(), unfusedValuesSpec{
		newBlockSpec(rowTile.Threads, rowTile.ThreadsX, rowTile.BlockM, rowTile.StageRows), uint32(p.HeadDim), argument.Aligned(4, b.k),
	}, values, none)
	u.dk, u.dv = b.newKeysKernel(p.HeadDim, b.q), b.newKeysKernel(p.ValueHeadDim(), b.do)
	return u
}

// newKeysKernel returns attention_unfused_keys for dK, from Q, or dV, from dO.
func (b *backward) newKeysKernel(dim int, x vk.Tensor) kernel[unfusedParams] {
	tile := &b.config.DKV
	return newKernel[unfusedParams](b.c, "attention_unfused_keys", b.p.DType.Short(), &b.p, unfusedKeysSpec{
		newBlockSpec(tile.Threads, tile.ThreadsX, tile.BlockM, tile.StageRows), uint32(dim), argument.Aligned(4, x),
	}, vk.KernelOptions{})
}
