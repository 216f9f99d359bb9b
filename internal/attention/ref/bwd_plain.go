package ref

import (
	"math"

	"github.com/flashvk/flashvk/attention"
)

// PlainBackward evaluates the formulas of Backward as a straightforward program
// in the storage type would, from O and LSE as the forward pass leaves them:
//
//	P      = exp(S - LSE)                      float32, as is what features make of S
//	dP     = (dO * Vᵀ) * Z                     float32
//	Delta  = rowsum(dO * O)                    float32
//	dS     = P * (dP - Delta + dLSE)           float32; its sum dBias is rounded to the bias's format, and without
//	                                           a Softcap is one of dX, as kernels may have it
//	dX     = dS * (1 - tanh(x)²)               float32, then rounded to p.DType
//	dQ, dK = Scale * (sum of dX*K, of dX*Q)    sums of float32, rounded to p.DType at the end
//	dV     = sum of W*dO                       W = P*Z rounded to p.DType; likewise
//	dSinks = sum of exp(sink - LSE) * (dLSE - Delta)  float32
//
// GradientBounds derives from it what a kernel is allowed, as PlainBound does
// from Plain. O and LSE are those of Forward, rounded to p.DType and float32
// (Saved); the other arguments are those of Backward. All are rounded to float32.
func PlainBackward[T Float](g Gradients, o, lse []float64, up Upstream[T], in Inputs[T], p attention.Problem) error {
	if err := checkBackward(&g, &up, &in, p); err != nil {
		return err
	}
	if err := checkSaved(o, lse, p); err != nil {
		return err
	}
	dbias := make([]float32, len(g.DBias))
	dsinks := make([]float32, p.Batch*p.NumHeads)
	eachKeyHead(p, g.DBias != nil, func() func(batch, kv int) {
		return newPlainBwd(g, dbias, dsinks, o, lse, &up, &in, p).keyHead
	})
	for i, x := range dbias {
		g.DBias[i] = float64(p.Bias.DType.Round(x))
	}
	sumSinks(g.DSinks, dsinks)
	return nil
}

// plainBwd holds the buffers of one goroutine.
type plainBwd[T Float] struct {
	g             Gradients
	dbias, dsinks []float32 // BiasShape, or none; (batch, num_heads)
	out, lse      []float64 // O and LSE
	up            *Upstream[T]
	in            *Inputs[T]
	p             attention.Problem

	q, o, do, dq []float32 // of a row
	k, v, dk, dv []float32 // of the keys of a head
	kept         []float32 // (seq_kv), what dropout multiplies with
}

func newPlainBwd[T Float](g Gradients, dbias, dsinks []float32, o, lse []float64, up *Upstream[T], in *Inputs[T], p attention.Problem) *plainBwd[T] {
	d, dv := p.HeadDim, p.ValueHeadDim()
	float32s := func(n int) []float32 { return make([]float32, n) }
	return &plainBwd[T]{
		g: g, dbias: dbias, dsinks: dsinks, out: o, lse: lse, up: up, in: in, p: p,
		q: float32s(d), o: float32s(dv), do: float32s(dv), dq: float32s(d),
		k: float32s(p.SeqKV * d), v: float32s(p.SeqKV * dv), dk: float32s(p.SeqKV * d), dv: float32s(p.SeqKV * dv),
		kept: float32s(p.SeqKV),
	}
}

// keyHead computes what the query heads of one key head have to do with.
func (w *plainBwd[T]) keyHead(batch, kv int) {
	p, d, dv := w.p, w.p.HeadDim, w.p.ValueHeadDim()
	l := w.in.places(p)
	mask := l.mask(batch)
	first, step := l.keys(batch, kv)
	n := mask.SeqKV
	k := gather(w.k, w.in.K, first, step, n, d)
	v := gather(w.v, w.in.V, first, step, n, dv)
	clear(w.dk)
	clear(w.dv)
	perKV := p.NumHeads / p.NumKVHeads
	for head := kv * perKV; head < (kv+1)*perKV; head++ {
		for i := range mask.SeqQ {
			w.row(k, v, mask, Row{batch, head, i})
		}
	}
	scale := float32(p.EffectiveScale())
	for j := range n {
		for e, x := range w.dk[j*d:][:d] {
			w.g.DK[(first+j*step)*d+e] = float64(p.DType.Round(scale * x))
		}
		for e, x := range w.dv[j*dv:][:dv] {
			w.g.DV[(first+j*step)*dv+e] = float64(p.DType.Round(x))
		}
	}
}

// row writes dQ of row r and adds what it gives to the other gradients. The
// conversions to float32 forbid fused multiply-add.
func (w *plainBwd[T]) row(k, v []float32, mask attention.Mask, r Row) {
	p, d, dv := w.p, w.p.HeadDim, w.p.ValueHeadDim()
	l := w.in.places(p)
	at := l.query(r)
	q, do := gather(w.q, w.in.Q, at, 1, 1, d), gather(w.do, w.up.DO, at, 1, 1, dv)
	clear(w.dq)
	defer func() {
		scale := float32(p.EffectiveScale())
		for e, x := range w.dq {
			w.g.DQ[at*d+e] = float64(p.DType.Round(scale * x))
		}
	}()
	lo, hi := mask.Keys(r.Row)
	lse := float32(w.lse[l.lse(r)])
	if math.IsInf(float64(lse), -1) {
		return
	}
	delta := dot(do, gather(w.o, w.out, at, 1, 1, dv))
	if w.up.DLSE != nil {
		delta -= float32(w.up.DLSE[l.lse(r)])
	}
	kept := w.kept[:hi-lo]
	for j := range kept {
		kept[j] = 1
	}
	dropRow(kept, lo, p, r)
	score := newScorer[float32](w.in, p, mask, r, 1)
	var dbias []float32
	if w.g.DBias != nil {
		dbias = w.dbias[biasAt(p, r):][:p.SeqKV]
	}
	for j := lo; j < hi; j++ {
		if !score.sees(j) {
			continue // K and V may be anything
		}
		x := float32(score.factor * dot(q, k[j*d:][:d]))
		P := float32(math.Exp(float64(score.score(x, j) - lse)))
		dS := P * (float32(dot(do, v[j*dv:][:dv])*kept[j-lo]) - delta)
		dX := p.DType.Round(dS * score.derivative(x))
		if dbias != nil {
			if p.Softcap == 0 {
				dS = dX
			}
			dbias[j] += dS
		}
		for e := range d {
			w.dq[e] += float32(dX * k[j*d+e])
			w.dk[j*d+e] += float32(dX * q[e])
		}
		W := p.DType.Round(P * kept[j-lo])
		for e, y := range do {
			w.dv[j*dv+e] += float32(W * y)
		}
	}
	if sink := float32(sink(w.in, p, r.Head, 1)); !math.IsInf(float64(sink), -1) {
		w.dsinks[r.Batch*p.NumHeads+r.Head] -= float32(math.Exp(float64(sink-lse))) * delta
	}
}
