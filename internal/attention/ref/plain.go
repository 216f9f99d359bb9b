package ref

import (
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/parallel"
)

// Plain evaluates the formula of Forward as a straightforward program in the
// storage type would, one operation after the other:
//
//	S   = float32(Scale) * (sum over head_dim, float32)     float32, as is what features make of it
//	P   = exp(S - max) / sum(exp(S - max))                  float32, then rounded to p.DType
//	O   = sum over keys of P * V, float32                   rounded to p.DType at the end
//	LSE = max + log(sum)                                    float32
//
// For float32 nothing is rounded further. What it differs from Forward by is
// the error that the format itself costs, from which PlainBound derives what a
// kernel is allowed. Arguments are those of Forward; inputs are rounded to float32.
func Plain[T Float](o, lse []float64, in Inputs[T], p attention.Problem) error {
	return plain(o, lse, &in, p, nil)
}

// PlainRows is Plain for the given rows only, as ForwardRows is to Forward.
func PlainRows[T Float](o, lse []float64, in Inputs[T], p attention.Problem, rows []Row) error {
	if rows == nil {
		rows = []Row{} // nil means all rows to plain
	}
	return plain(o, lse, &in, p, rows)
}

func plain[T Float](o, lse []float64, in *Inputs[T], p attention.Problem, rows []Row) error {
	list, err := prepare(o, lse, in, p, rows, maxChunkRows)
	if err != nil {
		return err
	}
	d, dv := p.HeadDim, p.ValueHeadDim()
	parallel.Workers(len(list), func() func(int) {
		var (
			kbuf, vbuf = make([]float32, p.SeqKV*d), make([]float32, p.SeqKV*dv)
			qbuf, obuf = make([]float32, d), make([]float32, dv)
			s          = make([]float32, p.SeqKV)
		)
		return func(i int) {
			c, l := list[i], in.places(p)
			mask := l.mask(c.batch)
			lo, hi := c.span(mask)
			first, step := l.keys(c.batch, c.kv)
			K := gather(kbuf, in.K, first+lo*step, step, hi-lo, d)
			V := gather(vbuf, in.V, first+lo*step, step, hi-lo, dv)
			for x, r := range c.rows {
				Q := gather(qbuf, in.Q, l.query(r), 1, 1, d)
				sum := plainRow(obuf, s[:hi-lo], Q, K, V, in, p, mask, r, lo)
				for e, y := range obuf {
					o[c.o[x]*dv+e] = float64(y)
				}
				if lse != nil {
					lse[c.lse[x]] = float64(sum)
				}
			}
		}
	})
	return nil
}

// plainRow computes row r over the keys first to first+len(s)-1, which k and v
// hold, and returns its LSE. The conversions to float32 forbid fused
// multiply-add, which some architectures' compilers would use.
func plainRow[T Float](o, s, q, k, v []float32, in *Inputs[T], p attention.Problem, mask attention.Mask, r Row, first int) float32 {
	clear(o)
	d, dv := len(q), len(o)
	score := newScorer[float32](in, p, mask, r, 1)
	sink := float32(sink(in, p, r.Head, 1))
	m := sink
	for j := range s {
		s[j] = score.score(float32(score.factor*dot(q, k[j*d:(j+1)*d])), first+j)
		m = max(m, s[j])
	}
	if math.IsInf(float64(m), -1) { // nothing seen: S - m would be -Inf - -Inf
		return m
	}
	l := float32(math.Exp(float64(sink - m)))
	for j, x := range s {
		s[j] = float32(math.Exp(float64(x - m)))
		l += s[j]
	}
	for j := range s {
		s[j] /= l
	}
	dropRow(s, first, p, r)
	for j, e := range s {
		P := p.DType.Round(e)
		if P == 0 {
			continue // the key may be hidden, and its V anything
		}
		for i, x := range v[j*dv : (j+1)*dv] {
			o[i] += float32(P * x)
		}
	}
	for i, x := range o {
		o[i] = p.DType.Round(x)
	}
	return m + float32(math.Log(float64(l)))
}

// dot returns the sum of a[i]*b[i], added from the first to the last.
func dot[F Float](a, b []F) F {
	var sum F
	b = b[:len(a)]
	for i, x := range a {
		sum += F(x * b[i])
	}
	return sum
}
