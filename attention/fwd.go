package attention

import (
	"math"

	"github.com/flashvk/flashvk/vk"
)

// Forward computes softmax attention for every batch and head,
//
//	S   = Scale * Q * Kᵀ, then the features of p: see Problem
//	P   = softmax(S) over the keys that a row sees
//	O   = P * V
//	LSE = log(sum(exp(S))) of each row, natural logarithm
//
// Only the unfused path writes S and P to memory.
//
// Q and O are (batch, num_heads, seq_q, head_dim), K and V are (batch, num_kv_heads, seq_kv,
// head_dim), with any strides and a contiguous last axis, all of p.DType. Sums are float32. LSE is
// (batch, num_heads, seq_q) float32; the zero Tensor leaves it out. Query head h reads key head h /
// (num_heads/num_kv_heads). Strides and offsets that are multiples of 8 elements are fastest. The
// memory of O and of LSE, from the first to the last element with all gaps, must not overlap that
// of another tensor.
//
// If p.Causal, p.CausalAlign aligns the mask. For seq_q = 2 and seq_kv = 5 the keys seen are
//
//	bottom-right  1 1 1 1 0    top-left  1 0 0 0 0
//	              1 1 1 1 1              1 1 0 0 0
//
// A row that sees no key has O = 0 and LSE = -Inf, or with Sinks LSE = the sink of its head.
//
// The fields of Problem describe the features and draw their masks; Tensors has their tensors. With
// Varlen all tensors are packed. Keys and values that masks hide from every row may be anything,
// NaN too.
//
// For a few queries with many keys Forward takes the kernels of Decode where they are faster,
// unless opt forces a path; Choose says which.
//
// Forward records into c and returns; O and LSE are valid once c has completed. The first call that
// needs a kernel compiles it; later calls find it in the device's cache.
//
// The error wraps vk.ErrUnsupported if no path on the device handles p, and names the argument if a
// tensor does not fit p.
//
// The algorithm is Algorithm 1 of Dao, FlashAttention-2 (arXiv:2307.08691).
func Forward(c *vk.Cmd, t Tensors, p Problem, opt Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	d := c.Device()
	decode, _, decodes, err := forwardAsDecode(d.Caps(), &p, &opt)
	if err != nil {
		return err
	}
	if decodes && decode.checkLayout(d.Caps(), &DecodeProblem{Problem: p}, askDevice(d)) != nil && opt.DecodeConfig == nil {
		decodes = false
	}
	var config Config
	if !decodes {
		if config, err = chooseForward(d.Caps(), p, opt); err != nil {
			return err
		}
	}
	if err := checkForward(&t, p); err != nil {
		return err
	}
	if decodes {
		return forwardDecode(c, &t, &p, decode)
	}
	t.narrow()
	o, lse, q, k, v := t.O, t.LSE, t.Q, t.K, t.V
	if p.Varlen.On {
		o, lse, q, k, v = unpack(o, &p), unpack(lse, &p), unpack(q, &p), unpack(k, &p), unpack(v, &p)
	}
	if p.Plain() && p.Causal && p.CausalAlign == TopLeft {
		p.SeqKV = min(p.SeqKV, p.SeqQ) // no row sees the others: a NaN in V would not become 0 by a weight of 0
	}
	if config.Impl == Unfused {
		return forwardUnfused(c, o, lse, q, k, v, p, &t, config)
	}
	if packs(&p) {
		o, lse, q, p = packHeads(o, &p), packHeads(lse, &p), packHeads(q, &p), packProblem(p)
	}
	if config.Splits > 1 {
		return forwardSplits(c, o, lse, q, k, v, p, config)
	}
	return forwardFused(c, o, lse, q, k, v, p, &t, config)
}

// forwardFused records the fused kernel of config. With config.Splits > 1, o and lse are the
// partial results of shaders/lib/split_kv.glsl.
func forwardFused(c *vk.Cmd, o, lse, q, k, v vk.Tensor, p Problem, in *Tensors, config Config) error {
	if config.Impl == Scalar {
		return forwardScalar(c, o, lse, q, k, v, p, in, config)
	}
	if config.Stripes > 0 {
		return forwardDirect(c, o, lse, q, k, v, p, config)
	}
	return forwardMatrix(c, o, lse, q, k, v, p, in, config)
}

// fwdParams is the push-constant block of lib/params_fwd.glsl.
type fwdParams struct {
	SeqQ        uint32  `glsl:"seq_q"`
	SeqKV       uint32  `glsl:"seq_kv"`
	HeadsPerKV  uint32  `glsl:"heads_per_kv"`
	NumHeads    uint32  `glsl:"num_heads"`
	GroupHeads  uint32  `glsl:"group_heads"`
	Splits      uint32  `glsl:"splits"`
	CausalShift int32   `glsl:"causal_shift"`
	ScaleLog2   float32 `glsl:"scale_log2"`
	QSign       uint32  `glsl:"q_sign"`
	qkvParams           // elements, like all that follow
	outParams
}

// log2e turns natural exponents into binary ones: exp(x) = exp2(x * log2e).
const log2e = 1 / math.Ln2

// newFwdParams fills the block for all batches.
func newFwdParams(o, lse, q, k, v vk.Tensor, p Problem, splits int) fwdParams {
	scale := p.EffectiveScale() * log2e
	params := fwdParams{
		SeqQ: uint32(p.SeqQ), SeqKV: uint32(p.SeqKV),
		HeadsPerKV:  uint32(p.NumHeads / p.NumKVHeads),
		NumHeads:    uint32(p.NumHeads),
		Splits:      uint32(splits),
		CausalShift: int32(p.Mask().Shift),
		ScaleLog2:   float32(math.Abs(scale)),
		qkvParams:   newQKVParams(q, k, v),
		outParams:   newOutParams(o, lse),
	}
	if scale < 0 {
		params.QSign = 0x80008000 // -S = (-Q) * Kᵀ
	}
	return params
}

const (
	// groupBytes is the most memory that the heads of one group may walk over together, so that it
	// stays in a GPU's last-level cache.
	groupBytes = 16 << 20
	// maxGroup bounds the heads of a group, and so the search for their number.
	maxGroup = 256
)

// rowGroup returns how many heads take turns with their blocks of rows.
func rowGroup(p *Problem, blocks int, limit [3]uint32) int {
	return groupHeads(p, p.Batch*p.NumHeads, p.SeqKV, p.NumHeads/p.NumKVHeads, blocks, limit)
}

// groupHeads returns how many of the heads take turns with their blocks
// (shaders/lib/order.glsl): a divisor of all, or 0 for the order without groups. A block walks over
// up to seq rows of two tensors, the same for `sharing` heads. Without a causal mask all blocks are
// equally long, and head after head uses the cache best.
func groupHeads(p *Problem, heads, seq, sharing, blocks int, limit [3]uint32) int {
	if !p.Causal || blocks > int(limit[1]) {
		return 0
	}
	headBytes := 2 * float64(seq) * float64(p.HeadDim) * float64(p.DType.Size())
	most := groupBytes / headBytes * float64(sharing)
	for n := min(int(most), heads, maxGroup, int(limit[0])); n > 1; n-- {
		if heads%n == 0 && heads/n <= int(limit[2]) {
			return n
		}
	}
	return 0
}

// dispatchFwd records a fused kernel over all blocks of rows, splits of their keys, heads and
// batches, in the order of shaders/lib/order.glsl. A dispatch takes as many batches as the device
// allows.
func dispatchFwd(c *vk.Cmd, kernel kernel[fwdParams], o, lse, q, k, v vk.Tensor, p Problem, in *Tensors, config Config) error {
	caps := c.Device().Caps()
	limit := caps.MaxWorkgroupCount
	blockM := config.blockRows(caps, p.DType)
	splits := max(config.Splits, 1)
	blocks := (p.SeqQ + blockM - 1) / blockM * splits
	if blocks > int(limit[0]) {
		return unsupported("seq_q=%d makes %d blocks of rows, splits=%d counted in, more than the device's %d workgroups", p.SeqQ, blocks, splits, limit[0])
	}
	if p.NumHeads > int(limit[1]) {
		return unsupported("num_heads=%d is more than the device's %d workgroups", p.NumHeads, limit[1])
	}
	params := newFwdParams(o, lse, q, k, v, p, splits)
	lse = orElse(lse, o) // every binding needs a tensor; the kernel does not touch it
	var features *boundFeatures
	if !p.Plain() {
		features = newBoundFeatures(&p, in, q)
	}
	if group := rowGroup(&p, blocks, limit); group > 0 {
		params.GroupHeads = uint32(group)
		kernel.dispatch(c, vk.Groups{X: uint32(group), Y: uint32(blocks), Z: uint32(p.Batch * p.NumHeads / group)}, params, features, q, k, v, o, lse)
		return c.Err()
	}
	step := int(limit[2])
	for first := 0; first < p.Batch; first += step {
		n := min(step, p.Batch-first)
		kernel.dispatch(c, vk.Groups{X: uint32(blocks), Y: uint32(p.NumHeads), Z: uint32(n)}, params, features, q, k, v, o, lse)
		for _, x := range []*place{&params.Q, &params.K, &params.V, &params.O, &params.LSE} {
			x.skip(uint32(n))
		}
		if features != nil {
			features.skip(&p, first, n)
		}
	}
	return c.Err()
}

// aligned reports whether all tensors are aligned to n elements (vk.Tensor.Aligned).
func aligned(n int, tensors ...*vk.Tensor) bool {
	for _, t := range tensors {
		if !t.Aligned(n) {
			return false
		}
	}
	return true
}
