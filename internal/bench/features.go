package bench

import (
	"github.com/flashvk/flashvk/attention"
)

// lengthOf returns the length of sequence b of a Varlen whose longest has most: all of it, three
// quarters, a half, a quarter, and again.
func lengthOf(b, most int) int { return (most*(4-b%4) + 3) / 4 }

// Varlen returns the Varlen that is measured for a batch whose longest sequences have seqQ rows
// and seqKV keys. The others have three quarters, a half and a quarter of that, and again.
func Varlen(batch, seqQ, seqKV int) attention.Varlen {
	v := attention.Varlen{On: true}
	for b := range batch {
		v.TotalQ += lengthOf(b, seqQ)
		v.TotalKV += lengthOf(b, seqKV)
	}
	return v
}

// cuSeqlens returns where the sequences of Varlen begin.
func cuSeqlens(p attention.Problem) (q, kv []int32) {
	q, kv = []int32{0}, []int32{0}
	for b := range p.Batch {
		q = append(q, q[b]+int32(lengthOf(b, p.SeqQ)))
		kv = append(kv, kv[b]+int32(lengthOf(b, p.SeqKV)))
	}
	return q, kv
}

// flops returns the operations of p with the sequences of Varlen.
func flops(p attention.Problem) float64 {
	if p.Varlen.On {
		return p.FLOPsOf(cuSeqlens(p))
	}
	return p.FLOPs()
}

func elements(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}
