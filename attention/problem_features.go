package attention

import (
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
)

// Unlimited is a side of a Window that hides nothing.
const Unlimited = -1

// A Window shows row i the keys
//
//	i + shift - Left <= j <= i + shift + Right
//
// with the shift of CausalAlign. Unlimited, -1, opens a side. For SeqQ = 3 and SeqKV = 5, so a
// shift of 2, the keys seen are
//
//	Left 1, Right 0    Left 1, Right 1    Left 1, Right -1    Left -1, Right 0
//	0 1 1 0 0          0 1 1 1 0          0 1 1 1 1           1 1 1 0 0
//	0 0 1 1 0          0 0 1 1 1          0 0 1 1 1           1 1 1 1 0
//	0 0 0 1 1          0 0 0 1 1          0 0 0 1 1           1 1 1 1 1
//
// With Causal, Right counts as 0.
type Window struct {
	On          bool
	Left, Right int
}

// String returns left,right as --window takes it, or off.
func (w Window) String() string {
	if !w.On {
		return "off"
	}
	return fmt.Sprintf("%d,%d", w.Left, w.Right)
}

// ALiBi subtracts slope * |i + shift - j| from the score of row i and key j, after Softcap. The
// slopes are a tensor of float32. For a slope of 1, SeqQ = 3 and SeqKV = 4 it subtracts
//
//	BottomRight  1 0 1 2    TopLeft  0 1 2 3
//	             2 1 0 1             1 0 1 2
//	             3 2 1 0             2 1 0 1
type ALiBi uint8

// The shapes of the slopes.
const (
	ALiBiOff          ALiBi = iota
	ALiBiPerHead            // (NumHeads)
	ALiBiPerBatchHead       // (Batch, NumHeads)
)

var alibiNames = enum.Names[ALiBi]{ALiBiOff: "off", ALiBiPerHead: "heads", ALiBiPerBatchHead: "batch-heads"}

// String returns off, heads or batch-heads.
func (a ALiBi) String() string { return alibiNames.Of(a) }

// A Bias is a tensor that is added to the scores after Softcap,
//
//	(Batch or 1, NumHeads or 1, SeqQ or 1, SeqKV)
//
// An axis of length 1 is shared: its one element counts for all. -Inf hides the key from the row.
// NaN and +Inf make a row undefined.
type Bias struct {
	On    bool
	DType dtype.DType // Float32 or the dtype of the problem

	// Batch, Heads and Rows say that the bias has this axis; otherwise it is shared.
	Batch, Heads, Rows bool
}

// String returns the format and the axes of the bias, such as float32+heads+rows, or off.
func (b Bias) String() string {
	if !b.On {
		return "off"
	}
	s := b.DType.String()
	for _, axis := range []struct {
		there bool
		name  string
	}{{b.Batch, "+batch"}, {b.Heads, "+heads"}, {b.Rows, "+rows"}} {
		if axis.there {
			s += axis.name
		}
	}
	return s
}

// Varlen packs sequences of different lengths one after the other:
//
//	Q        (TotalQ, NumHeads, HeadDim)
//	K        (TotalKV, NumKVHeads, HeadDim)
//	V        (TotalKV, NumKVHeads, ValueDim)
//	O        (TotalQ, NumHeads, ValueDim)
//	LSE      (NumHeads, TotalQ)
//	cu_seqlens_q, cu_seqlens_kv  (Batch+1), int32
//
// Sequence b has the rows cu_seqlens_q[b] to cu_seqlens_q[b+1]-1 and the keys cu_seqlens_kv[b] to
// cu_seqlens_kv[b+1]-1. For the lengths 2, 0 and 1 of queries and of keys, and Causal, the keys
// seen are
//
//	1 0 .    cu_seqlens_q = cu_seqlens_kv = 0 2 2 3
//	1 1 .
//	. . 1
//
// Each sequence has its own masks; the shift follows from its own lengths. Rows and keys count
// within the sequence for all features. KeyMask and Bias have the shapes of a batch of sequences of
// SeqQ and SeqKV, the maximal lengths. Rows of Q after the last sequence have no result: O and LSE
// keep their content there.
type Varlen struct {
	On              bool
	TotalQ, TotalKV int
}

// String returns TotalQxTotalKV, or off.
func (v Varlen) String() string {
	if !v.On {
		return "off"
	}
	return fmt.Sprintf("%dx%d", v.TotalQ, v.TotalKV)
}

// A feature of a problem, with its benchmark key.
type feature struct {
	on    bool
	name  string
	value any
}

func (p Problem) features() []feature {
	return []feature{
		{p.ValueHeadDim() != p.HeadDim, "value_dim", p.ValueDim},
		{p.Window.On, "window", p.Window},
		{p.Softcap != 0, "softcap", p.Softcap},
		{p.ALiBi != ALiBiOff, "alibi", p.ALiBi},
		{p.Bias.On, "bias", p.Bias},
		{p.KeyMask, "key_mask", true},
		{p.Sinks, "sinks", true},
		{p.Varlen.On, "varlen", p.Varlen},
		{p.Dropout.On(), "dropout", p.Dropout.P},
		{p.Quant != dtype.NoQuant, "quant", p.Quant},
	}
}

// Features returns the names of the features that p has beyond a causal mask; none for a plain
// problem.
func (p Problem) Features() []string {
	var names []string
	for _, f := range p.features() {
		if f.on {
			names = append(names, f.name)
		}
	}
	return names
}

// Plain reports whether p has no feature but a causal mask.
func (p Problem) Plain() bool {
	return p.ValueHeadDim() == p.HeadDim && !p.Window.On && p.Softcap == 0 && p.ALiBi == ALiBiOff &&
		!p.Bias.On && !p.KeyMask && !p.Sinks && !p.Varlen.On && !p.Dropout.On()
}

// String returns the benchmark keys of p, such as
// dtype=float16/batch=4/heads=16/kv_heads=16/seq_q=4096/seq_kv=4096/head_dim=128/causal=false.
// Features that are on follow, such as /window=512,0/softcap=30.
func (p Problem) String() string {
	causal := "false"
	if p.Causal {
		causal = "true"
		if p.CausalAlign == TopLeft {
			causal = "top-left"
		}
	}
	var s strings.Builder
	fmt.Fprintf(&s, "dtype=%v/batch=%d/heads=%d/kv_heads=%d/seq_q=%d/seq_kv=%d/head_dim=%d/causal=%s",
		p.DType, p.Batch, p.NumHeads, p.NumKVHeads, p.SeqQ, p.SeqKV, p.HeadDim, causal)
	for _, f := range p.FeatureKeys() {
		s.WriteString("/" + f)
	}
	return s.String()
}

// FeatureKeys returns the benchmark keys of the features that are on, as in
// window=512,0; an alignment is one where it is not Causal's.
func (p Problem) FeatureKeys() []string {
	var keys []string
	if p.CausalAlign == TopLeft && !p.Causal {
		keys = append(keys, "align=top-left")
	}
	for _, f := range p.features() {
		if f.on {
			keys = append(keys, fmt.Sprintf("%s=%v", f.name, f.value))
		}
	}
	return keys
}

// QuantKeys is the number of keys that share a scale where Problem.Quant is on.
const QuantKeys = 64
