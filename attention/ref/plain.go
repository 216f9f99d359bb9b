package ref

import (
	"math"

	"github.com/flashvk/flashvk/attention/problem"
)

// Plain evaluates the formula of Forward as a straightforward program in the
// storage type would, one operation after the other:
//
//	S   = float32(Scale) * (sum over head_dim, float32)     float32
//	P   = exp(S - max) / sum(exp(S - max))                  float32, then rounded to p.DType
//	O   = sum over keys of P * V, float32                   rounded to p.DType at the end
//	LSE = max + log(sum)                                    float32
//
// For float32 nothing is rounded further. What it differs from Forward by is
// the error that the format itself costs, from which PlainBound derives what a
// kernel is allowed. Arguments are those of Forward; inputs are rounded to float32.
func Plain[T Float](o, lse []float64, q, k, v []T, p problem.Problem) error {
	return plain(o, lse, q, k, v, p, nil)
}

// PlainRows is Plain for the given rows only, as ForwardRows is to Forward.
func PlainRows[T Float](o, lse []float64, q, k, v []T, p problem.Problem, rows []Row) error {
	if rows == nil {
		rows = []Row{} // nil means all rows to plain
	}
	return plain(o, lse, q, k, v, p, rows)
}

func plain[T Float](o, lse []float64, q, k, v []T, p problem.Problem, rows []Row) error {
	if err := checkInputs(len(q), len(k), len(v), p); err != nil {
		return err
	}
	list, err := chunks(p, rows, maxChunkRows)
	if err != nil {
		return err
	}
	n := len(rows)
	if rows == nil {
		n = p.Batch * p.NumHeads * p.SeqQ
	}
	if err := checkOutputs(o, lse, n, p); err != nil {
		return err
	}
	headSize := p.SeqKV * p.HeadDim
	parallel(len(list), func() func(int) {
		var (
			kbuf, vbuf = make([]float32, headSize), make([]float32, headSize)
			qbuf, obuf = make([]float32, p.HeadDim), make([]float32, p.HeadDim)
			s          = make([]float32, p.SeqKV)
		)
		return func(i int) {
			c := list[i]
			keys := c.maxVisible(p) * p.HeadDim
			K := convert(kbuf, k[c.kv*headSize:c.kv*headSize+keys])
			V := convert(vbuf, v[c.kv*headSize:c.kv*headSize+keys])
			for x, row := range c.rows {
				Q := convert(qbuf, q[row*p.HeadDim:(row+1)*p.HeadDim])
				sum := plainRow(obuf, s[:c.visible(x, p)], Q, K, V, p)
				at := c.at[x]
				for e, y := range obuf {
					o[at*p.HeadDim+e] = float64(y)
				}
				if lse != nil {
					lse[at] = float64(sum)
				}
			}
		}
	})
	return nil
}

// plainRow computes one row over len(s) keys and returns its LSE. The
// conversions to float32 forbid fused multiply-add, which some architectures'
// compilers would use.
func plainRow(o, s, q, k, v []float32, p problem.Problem) float32 {
	clear(o)
	if len(s) == 0 {
		return float32(math.Inf(-1))
	}
	d := len(q)
	scale := float32(p.EffectiveScale())
	m := float32(math.Inf(-1))
	for j := range s {
		s[j] = scale * dot(q, k[j*d:(j+1)*d])
		m = max(m, s[j])
	}
	var l float32
	for j, x := range s {
		s[j] = float32(math.Exp(float64(x - m)))
		l += s[j]
	}
	for j, e := range s {
		P := p.DType.Round(e / l)
		for i, x := range v[j*d : (j+1)*d] {
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
