package attention

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// unfusedParams is the push-constant block of lib/params_unfused.glsl.
type unfusedParams struct {
	SeqQ        uint32  `glsl:"seq_q"`
	SeqKV       uint32  `glsl:"seq_kv"`
	NumHeads    uint32  `glsl:"num_heads"`
	FirstHead   uint32  `glsl:"first_head"`
	HeadsPerKV  uint32  `glsl:"heads_per_kv"`
	CausalShift int32   `glsl:"causal_shift"`
	ScaleLog2   float32 `glsl:"scale_log2"`
	A           place   `glsl:"a"` // elements, like all that follow
	B           place   `glsl:"b"`
	LSEOffset   uint32  `glsl:"lse_offset"`
	LSEStrideB  uint32  `glsl:"lse_stride_b"`
	LSEStrideH  uint32  `glsl:"lse_stride_h"`
}

// unfusedScoresSpec is the specialization of attention_unfused_scores.comp and
// attention_unfused_bwd_scores.comp.
type unfusedScoresSpec struct {
	tileSpec
	HeadDim uint32 `glsl:"HEAD_DIM"`
	Causal  bool   `glsl:"CAUSAL"`
	Aligned bool   `glsl:"ALIGNED"`
}

// unfusedSoftmaxSpec is the specialization of attention_unfused_softmax.comp.
type unfusedSoftmaxSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	WriteLSE      bool   `glsl:"WRITE_LSE"`
}

// unfusedValuesSpec is the specialization of attention_unfused_values.comp.
type unfusedValuesSpec struct {
	blockSpec
	HeadDim uint32 `glsl:"HEAD_DIM"`
	Aligned bool   `glsl:"ALIGNED"`
}

const (
	// unfusedScoreBytes is the most memory that the unfused path takes for S. Heads
	// that do not fit run later in the same memory.
	unfusedScoreBytes = 1 << 30

	// softmaxThreads is the workgroup size of attention_unfused_softmax: every device
	// allows it.
	softmaxThreads = 128
)

// unfusedKernels are the three steps.
type unfusedKernels struct {
	scores, softmax, values kernel[unfusedParams]
}

// unfused records attention as three kernels with S, and then P, in
// memory that c owns: S = Scale*Q*Kᵀ, P = softmax(S), O = P*V.
func (f *forward) unfused() error {
	c, p, config, o, lse, q, k, v := f.c, f.p, &f.config, f.o, f.lse, f.q, f.k, f.v
	caps := c.Device().Caps()
	headBytes := 4 * int64(p.SeqQ) * int64(p.SeqKV)
	if limit := min(int64(caps.MaxStorageBufferRange), int64(caps.MaxAllocationBytes)); headBytes > limit {
		return unsupported("unfused: the scores of one head, seq_q=%d by seq_kv=%d, take %d bytes, more than the device's %d",
			p.SeqQ, p.SeqKV, headBytes, limit)
	}
	rowGroups, colGroups := groups(p.SeqQ, config.BlockM), groups(p.SeqKV, config.BlockN)
	limit := caps.MaxWorkgroupCount
	if colGroups > limit[0] || rowGroups > min(limit[0], limit[1]) {
		return unsupported("unfused: seq_q=%d by seq_kv=%d makes more tiles than the device's %d by %d workgroups", p.SeqQ, p.SeqKV, limit[0], limit[1])
	}
	kernels := f.unfusedKernels()
	heads := p.Batch * p.NumHeads
	step := min(heads, int(limit[2]), max(1, int(unfusedScoreBytes/headBytes)))
	s := c.Scratch("attention.unfused.S", int64(step)*headBytes)
	if err := c.Err(); err != nil {
		return err
	}
	scores := vk.Tensor{Buffer: s, DType: dtype.Float32, Shape: []int{step * p.SeqQ * p.SeqKV}, Strides: []int{1}}

	params := unfusedParams{
		SeqQ: uint32(p.SeqQ), SeqKV: uint32(p.SeqKV),
		NumHeads: uint32(p.NumHeads), HeadsPerKV: uint32(p.NumHeads / p.NumKVHeads),
		CausalShift: int32(p.Mask().Shift),
		ScaleLog2:   float32(p.EffectiveScale() * log2e),
	}
	if lse.IsZero() {
		lse = scores // every binding needs a tensor; the kernel does not touch it
	} else {
		params.LSEOffset, params.LSEStrideB, params.LSEStrideH = uint32(lse.Offset), uint32(lse.Strides[0]), uint32(lse.Strides[1])
	}
	features := newBoundFeatures(&p, f.tensors, q)
	rowsX := min(uint32(p.SeqQ), limit[0])
	for first := 0; first < heads; first += step {
		n := uint32(min(step, heads-first))
		params.FirstHead = uint32(first)
		params.A, params.B = placeOf(q), placeOf(k)
		kernels.scores.dispatch(c, vk.Groups{X: colGroups, Y: rowGroups, Z: n}, params, features, q, k, scores)
		kernels.softmax.dispatch(c, vk.Groups{X: rowsX, Y: groups(p.SeqQ, int(rowsX)), Z: n}, params, features, scores, lse)
		params.A, params.B = placeOf(o), placeOf(v)
		kernels.values.dispatch(c, vk.Groups{X: rowGroups, Z: n}, params, features, o, v, scores)
	}
	return c.Err()
}

// groups returns how many groups of size cover n, at most MaxUint32.
func groups(n, size int) uint32 {
	return uint32(min((n+size-1)/size, math.MaxUint32))
}

func (f *forward) unfusedKernels() unfusedKernels {
	c, p, config, none := f.c, f.p, &f.config, vk.KernelOptions{}
	scores := unfusedScoresSpec{
		tileSpec: tileSpec{config.blockSpec(), uint32(config.Depth)}, HeadDim: uint32(p.HeadDim), Causal: p.Causal, Aligned: argument.Aligned(4, f.q, f.k),
	}
	softmax := unfusedSoftmaxSpec{WorkgroupSize: softmaxThreads, WriteLSE: !f.lse.IsZero()}
	values := unfusedValuesSpec{config.blockSpec(), uint32(p.HeadDim), argument.Aligned(4, f.v)}
	return unfusedKernels{
		scores:  newKernel[unfusedParams](c, "attention_unfused_scores", p.DType.Short(), &p, scores, none),
		softmax: newKernel[unfusedParams](c, "attention_unfused_softmax", "", &p, softmax, none),
		values:  newKernel[unfusedParams](c, "attention_unfused_values", p.DType.Short(), &p, values, none),
	}
}
