package ref

import (
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/parallel"
)

// sampled computes gradients of single rows and keys in arithmetic F: in float64
// without rounding as Backward does, in float32 with that of p.DType as
// PlainBackward does, but for the order of sums.
type sampled[F, T Float] struct {
	o, lse []T
	up     *Upstream[T]
	in     *Inputs[T]
	p      attention.Problem
	round  func(F) F
}

// sampleSums are what bounds are derived from.
type sampleSums struct {
	term   float64 // the largest P * (|dP| + |Delta|)
	ds     float64 // the largest |dS|
	weight float64 // the largest sum of P of a key
}

// compute returns dQ of the rows and dK and dV of the keys.
func (s sampled[F, T]) compute(rows []Row, keys []Key) (Gradients, sampleSums) {
	d, dv := s.p.HeadDim, s.p.ValueHeadDim()
	g := Gradients{DQ: make([]float64, len(rows)*d), DK: make([]float64, len(keys)*d), DV: make([]float64, len(keys)*dv)}
	sums := make([]sampleSums, len(rows)+len(keys))
	parallel.Workers(len(sums), func() func(int) {
		w := sampleWorker[F, T]{
			sampled: s,
			q:       make([]F, d), k: make([]F, d), v: make([]F, dv), o: make([]F, dv), do: make([]F, dv),
			dk: make([]F, d), dv: make([]F, dv),
		}
		return func(i int) {
			if i < len(rows) {
				sums[i] = w.row(g.DQ[i*d:][:d], rows[i])
				return
			}
			n := i - len(rows)
			sums[i] = w.key(g.DK[n*d:][:d], g.DV[n*dv:][:dv], keys[n])
		}
	})
	var all sampleSums
	for _, x := range sums {
		all.term, all.ds, all.weight = max(all.term, x.term), max(all.ds, x.ds), max(all.weight, x.weight)
	}
	return g, all
}

// sampleWorker holds the buffers of one goroutine.
type sampleWorker[F, T Float] struct {
	sampled[F, T]
	q, k, v, o, do []F // of a row and a key
	dk, dv         []F // sums
}

// A sampleRow is what a pass knows of a row.
type sampleRow[F, T Float] struct {
	q, do      []F
	lse, delta F // delta is Delta - dLSE
	score      scorer[F, T]
	kept       attention.DropoutRow
}

// load reads row r.
func (w *sampleWorker[F, T]) load(r Row, mask attention.Mask) sampleRow[F, T] {
	p, l := w.p, w.in.places(w.p)
	at, dv := l.query(r), p.ValueHeadDim()
	x := sampleRow[F, T]{
		q:     gather(w.q, w.in.Q, at, 1, 1, p.HeadDim),
		do:    gather(w.do, w.up.DO, at, 1, 1, dv),
		lse:   F(w.lse[l.lse(r)]),
		score: newScorer[F](w.in, p, mask, r, 1),
		kept:  p.DropoutRow(r.Batch, r.Head, r.Row),
	}
	x.delta = dot(x.do, gather(w.o, w.sampled.o, at, 1, 1, dv))
	if w.up.DLSE != nil {
		x.delta -= F(w.up.DLSE[l.lse(r)])
	}
	return x
}

// pair returns W and dX of a row and a key that it sees, and adds to sums.
func (w *sampleWorker[F, T]) pair(r *sampleRow[F, T], k, v []F, j int, sums *sampleSums) (W, dX F) {
	x := F(r.score.factor * dot(r.q, k))
	P := F(math.Exp(float64(r.score.score(x, j) - r.lse)))
	dP := dot(r.do, v)
	W = P
	if w.p.Dropout.On() {
		keep := F(0)
		if r.kept.Kept(j) {
			keep = F(w.p.Dropout.KeepScale())
		}
		W, dP = P*keep, dP*keep
	}
	sums.term = max(sums.term, float64(P)*(math.Abs(float64(dP))+math.Abs(float64(r.delta))))
	sums.ds = max(sums.ds, math.Abs(float64(P)*float64(dP-r.delta)))
	sums.weight += float64(P)
	return w.round(W), w.round(P * (dP - r.delta) * r.score.derivative(x))
}

// row computes dQ of row r.
func (w *sampleWorker[F, T]) row(dq []float64, r Row) (sums sampleSums) {
	p, l := w.p, w.in.places(w.p)
	d, dv := p.HeadDim, p.ValueHeadDim()
	mask := l.mask(r.Batch)
	first, step := l.keys(r.Batch, r.Head/(p.NumHeads/p.NumKVHeads))
	x := w.load(r, mask)
	clear(w.dk) // serves for dQ
	for j := x.score.lo; j < x.score.hi; j++ {
		if !x.score.sees(j) {
			continue // K and V may be anything
		}
		k := gather(w.k, w.in.K, first+j*step, 1, 1, d)
		_, dX := w.pair(&x, k, gather(w.v, w.in.V, first+j*step, 1, 1, dv), j, &sums)
		for e, y := range k {
			w.dk[e] += F(dX * y)
		}
	}
	w.store(dq, w.dk, F(p.EffectiveScale()))
	sums.weight = 0 // of a row it is 1
	return sums
}

// key computes dK and dV of a key.
func (w *sampleWorker[F, T]) key(dk, dv []float64, key Key) (sums sampleSums) {
	p, l := w.p, w.in.places(w.p)
	mask := l.mask(key.Batch)
	first, step := l.keys(key.Batch, key.Head)
	at := first + key.Key*step
	k, v := gather(w.k, w.in.K, at, 1, 1, p.HeadDim), gather(w.v, w.in.V, at, 1, 1, p.ValueHeadDim())
	clear(w.dk)
	clear(w.dv)
	perKV := p.NumHeads / p.NumKVHeads
	for h := key.Head * perKV; h < (key.Head+1)*perKV; h++ {
		for i := range mask.SeqQ {
			if lo, hi := mask.Keys(i); key.Key < lo || key.Key >= hi {
				continue
			}
			x := w.load(Row{key.Batch, h, i}, mask)
			if !x.score.sees(key.Key) {
				continue
			}
			W, dX := w.pair(&x, k, v, key.Key, &sums)
			for e, y := range x.q {
				w.dk[e] += F(dX * y)
			}
			for e, y := range x.do {
				w.dv[e] += F(W * y)
			}
		}
	}
	w.store(dk, w.dk, F(p.EffectiveScale()))
	w.store(dv, w.dv, 1)
	return sums
}

// store writes scale times a sum.
func (w *sampleWorker[F, T]) store(to []float64, sum []F, scale F) {
	for e, x := range sum {
		to[e] = float64(w.round(scale * x))
	}
}
