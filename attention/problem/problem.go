// Package problem describes an attention problem: its sizes, its mask, its
// scale, and the counts that follow from them. It imports no Vulkan, so that
// references, models and tests on machines without a GPU share it with the
// kernels.
//
//	Problem                       sizes, format, mask and scale of one call
//	Validate                      the rules, a message for each
//	VisibleKeys, CausalShift      the mask, row by row
//	EffectiveScale                the factor of the scores
//	Entries, FLOPs, Bytes         what rates are computed from
package problem

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
)

// An Align says which corner of the (seq_q, seq_kv) matrix of scores a causal
// mask is aligned to.
type Align uint8

const (
	// BottomRight lets row i see keys j <= i + seq_kv - seq_q, as
	// FlashAttention does: the last query sees every key.
	BottomRight Align = iota
	// TopLeft lets row i see keys j <= i, as PyTorch's is_causal does: the
	// first query sees one key.
	TopLeft
)

// String returns the name used by --causal-align.
func (a Align) String() string {
	switch a {
	case BottomRight:
		return "bottom-right"
	case TopLeft:
		return "top-left"
	}
	return fmt.Sprintf("Align(%d)", uint8(a))
}

// ParseAlign accepts bottom-right and top-left.
func ParseAlign(name string) (Align, error) {
	for _, a := range []Align{BottomRight, TopLeft} {
		if name == a.String() {
			return a, nil
		}
	}
	return 0, fmt.Errorf("attention: causal-align %q is not one of bottom-right, top-left", name)
}

const (
	// MaxHeadDim is the largest head_dim.
	MaxHeadDim = 256
	// HeadDimMultiple divides every head_dim.
	HeadDimMultiple = 8

	// minNormal is the least float32 that every device multiplies by exactly.
	minNormal = 0x1p-126
)

// A Problem is one attention call,
//
//	S = Scale * Q * Kᵀ,  P = softmax(S) over the visible keys,  O = P * V
//
// with Q and O (Batch, NumHeads, SeqQ, HeadDim) and K and V
// (Batch, NumKVHeads, SeqKV, HeadDim). Query head h reads key head
// h / (NumHeads/NumKVHeads).
type Problem struct {
	Batch      int
	NumHeads   int
	NumKVHeads int
	SeqQ       int
	SeqKV      int
	HeadDim    int

	// DType is the storage format of Q, K, V and O. Sums are float32 always.
	DType dtype.DType

	// Causal hides the keys after a row's own position. For SeqQ = 2 and
	// SeqKV = 5 the keys seen are
	//
	//	BottomRight  1 1 1 1 0    TopLeft  1 0 0 0 0
	//	             1 1 1 1 1             1 1 0 0 0
	//
	// and for SeqQ = 5 and SeqKV = 2
	//
	//	BottomRight  0 0          TopLeft  1 0
	//	             0 0                   1 1
	//	             0 0                   1 1
	//	             1 0                   1 1
	//	             1 1                   1 1
	//
	// A row that sees no key has O = 0 and LSE = -Inf.
	Causal      bool
	CausalAlign Align

	// Scale multiplies the scores; 0 stands for the default, 1/√HeadDim. It
	// may be negative. Its magnitude times log2(e), what the kernels multiply
	// by, is a normal float32: about 8.15e-39 to 2.35e+38.
	Scale float64
}

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error {
	if !p.DType.Valid() {
		return fmt.Errorf("attention: dtype=%v is not a known format", p.DType)
	}
	if p.CausalAlign > TopLeft {
		return fmt.Errorf("attention: causal_align=%v is not a known alignment", p.CausalAlign)
	}
	if p.CausalAlign != BottomRight && !p.Causal {
		return fmt.Errorf("attention: causal_align=%v without causal", p.CausalAlign)
	}
	// A subnormal factor may be flushed to zero, and 0 * -Inf is NaN.
	if f := float32(math.Abs(p.Scale) * math.Log2E); p.Scale != 0 && !(f >= minNormal && f <= math.MaxFloat32) {
		return fmt.Errorf("attention: scale=%v times log2(e) is not a normal float32", p.Scale)
	}
	for _, s := range []struct {
		name string
		n    int
	}{
		{"batch", p.Batch}, {"num_heads", p.NumHeads}, {"num_kv_heads", p.NumKVHeads},
		{"seq_q", p.SeqQ}, {"seq_kv", p.SeqKV}, {"head_dim", p.HeadDim},
	} {
		if s.n < 1 {
			return fmt.Errorf("attention: %s=%d is not positive", s.name, s.n)
		}
		if s.n > math.MaxInt32 {
			return fmt.Errorf("attention: %s=%d is larger than %d", s.name, s.n, math.MaxInt32)
		}
	}
	if p.NumHeads%p.NumKVHeads != 0 {
		return fmt.Errorf("attention: num_heads=%d is not a multiple of num_kv_heads=%d", p.NumHeads, p.NumKVHeads)
	}
	if p.HeadDim%HeadDimMultiple != 0 {
		return fmt.Errorf("attention: head_dim=%d is not a multiple of %d", p.HeadDim, HeadDimMultiple)
	}
	if p.HeadDim > MaxHeadDim {
		return fmt.Errorf("attention: head_dim=%d is larger than %d", p.HeadDim, MaxHeadDim)
	}
	// The largest tensor's element count must be an int64, with room to spare
	// for strides and bytes.
	elements := float64(p.Batch) * float64(p.NumHeads) * float64(max(p.SeqQ, p.SeqKV)) * float64(p.HeadDim)
	if elements > 1<<52 {
		return fmt.Errorf("attention: batch*num_heads*seq*head_dim=%.3g elements is larger than 2^52", elements)
	}
	return nil
}

// EffectiveScale returns the factor that the scores are multiplied by.
func (p Problem) EffectiveScale() float64 {
	if p.Scale != 0 {
		return p.Scale
	}
	return 1 / math.Sqrt(float64(p.HeadDim))
}

// CausalShift returns the shift of the causal diagonal: row i sees key j if
// j <= i + CausalShift().
func (p Problem) CausalShift() int {
	if p.CausalAlign == TopLeft {
		return 0
	}
	return p.SeqKV - p.SeqQ
}

// VisibleKeys returns how many keys row i sees: keys 0 to VisibleKeys(i)-1.
func (p Problem) VisibleKeys(i int) int {
	if !p.Causal {
		return p.SeqKV
	}
	return min(max(i+p.CausalShift()+1, 0), p.SeqKV)
}

// Entries returns the number of unmasked (row, key) pairs of one head.
func (p Problem) Entries() float64 {
	if !p.Causal {
		return float64(p.SeqQ) * float64(p.SeqKV)
	}
	// Row i sees clamp(i+shift+1, 0, SeqKV) keys: a ramp between two plateaus.
	// Rows first..full-1 are on the ramp, rows full.. see all.
	shift := p.CausalShift()
	first := min(max(-shift, 0), p.SeqQ)
	full := min(max(p.SeqKV-shift-1, first), p.SeqQ)
	ramp := float64(full-first) * (float64(first+shift+1) + float64(full+shift)) / 2
	return ramp + float64(p.SeqQ-full)*float64(p.SeqKV)
}

// FLOPs returns the floating-point operations of the forward pass by the
// field's convention, 4 * batch * heads * entries * head_dim: one multiply and
// one add for each entry of Q*Kᵀ and of P*V. Masked entries do not count, so
// a causal square counts about half.
func (p Problem) FLOPs() float64 {
	return 4 * float64(p.Batch) * float64(p.NumHeads) * p.Entries() * float64(p.HeadDim)
}

// Bytes returns the least traffic of the forward pass: Q, K, V read once, O
// and LSE written once.
func (p Problem) Bytes() float64 {
	rows := float64(p.Batch) * float64(p.NumHeads) * float64(p.SeqQ)
	keys := float64(p.Batch) * float64(p.NumKVHeads) * float64(p.SeqKV)
	return (2*rows+2*keys)*float64(p.HeadDim)*float64(p.DType.Size()) + 4*rows
}

// String returns the benchmark keys of p, as in
// dtype=float16/batch=4/heads=16/kv_heads=16/seq_q=4096/seq_kv=4096/head_dim=128/causal=false.
func (p Problem) String() string {
	causal := "false"
	if p.Causal {
		causal = "true"
		if p.CausalAlign == TopLeft {
			causal = "top-left"
		}
	}
	return fmt.Sprintf("dtype=%v/batch=%d/heads=%d/kv_heads=%d/seq_q=%d/seq_kv=%d/head_dim=%d/causal=%s",
		p.DType, p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV, p.HeadDim, causal)
}
