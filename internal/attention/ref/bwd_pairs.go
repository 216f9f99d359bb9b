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
	if err := checkSaved(len(o), len(lse), p); err != nil {
		return err
	}
	w := pairs[float32, T]{
		p: p, in: &in, up: &up, o: convert[float32](o), lse: convert[float32](lse), round: p.DType.Round, g: g,
		dbias: make([]float32, len(g.DBias)), dsinks: make([]float32, p.Batch*p.NumHeads),
	}
	w.compute()
	for i, x := range w.dbias {
		g.DBias[i] = float64(p.Bias.DType.Round(x))
	}
	sumSinks(g.DSinks, w.dsinks)
	return nil
}

// convert returns the elements of x in another type.
func convert[To, From Float](x []From) []To {
	return gather(make([]To, len(x)), x, 0, 1, len(x), 1)
}

// pairs computes gradients in arithmetic F, one pair of a row and a key after the other: all
// gradients, or dQ of some rows and dK and dV of some keys. Round rounds as the storage type does,
// or not at all.
type pairs[F, T Float] struct {
	p      attention.Problem
	in     *Inputs[T]
	up     *Upstream[T]
	o, lse []F
	round  func(F) F

	// Where the results of some rows and keys are in g; nil stands for all, in their own places.
	rows map[Row]int
	keys map[Key]int

	g             Gradients
	dbias, dsinks []F // BiasShape, or none; (batch, num_heads), or none
}

// pairSums are what bounds are derived from.
type pairSums struct {
	term   float64 // the largest P * (|dP| + |Delta|)
	square float64 // the largest sum of its squares of a key
	ds     float64 // the largest |dS|
	weight float64 // the largest sum of P of a key
}

// compute writes g and adds to dbias and dsinks.
func (w *pairs[F, T]) compute() (all pairSums) {
	p := w.p
	sums := make([]pairSums, p.Batch*p.NumKVHeads)
	eachKeyHead(p, len(w.dbias) > 0, func() func(batch, kv int) {
		fs := func(n int) []F { return make([]F, n) }
		d, dv, n := p.HeadDim, p.ValueHeadDim(), p.SeqKV
		x := pairWorker[F, T]{
			pairs: w, q: fs(d), do: fs(dv), dq: fs(d), k: fs(n * d), v: fs(n * dv), dk: fs(n * d), dv: fs(n * dv),
			weights: make([]float64, n), squares: make([]float64, n), at: make([]int, n),
		}
		return func(batch, kv int) { sums[batch*p.NumKVHeads+kv] = x.keyHead(batch, kv) }
	})
	for _, x := range sums {
		all.term, all.square = max(all.term, x.term), max(all.square, x.square)
		all.ds, all.weight = max(all.ds, x.ds), max(all.weight, x.weight)
	}
	return all
}

// pairWorker holds the buffers of one goroutine.
type pairWorker[F, T Float] struct {
	*pairs[F, T]
	q, do, dq    []F       // of a row
	k, v, dk, dv []F       // of the keys of a head
	weights      []float64 // sums of P of the keys
	squares      []float64 // sums of the squares of the keys' terms
	at           []int     // where dK and dV of the keys are in g; -1: not wanted
	wanted       []int     // the keys whose dK and dV are wanted
	sums         pairSums
}

// keyHead computes what the query heads of one key head have to do with.
func (w *pairWorker[F, T]) keyHead(batch, kv int) pairSums {
	p, d, dv, l := w.p, w.p.HeadDim, w.p.ValueHeadDim(), w.in.places(w.p)
	mask := l.mask(batch)
	first, step := l.keys(batch, kv)
	w.wanted, w.sums = w.wanted[:0], pairSums{}
	for j := range mask.SeqKV {
		at, ok := first+j*step, true
		if w.keys != nil {
			at, ok = w.keys[Key{batch, kv, j}]
		}
		if w.at[j] = -1; ok {
			w.at[j], w.wanted = at, append(w.wanted, j)
		}
	}
	k := gather(w.k, w.in.K, first, step, mask.SeqKV, d)
	v := gather(w.v, w.in.V, first, step, mask.SeqKV, dv)
	clear(w.dk)
	clear(w.dv)
	clear(w.weights)
	clear(w.squares)
	perKV := p.NumHeads / p.NumKVHeads
	for head := kv * perKV; head < (kv+1)*perKV; head++ {
		for i := range mask.SeqQ {
			w.row(k, v, mask, Row{batch, head, i})
		}
	}
	for _, j := range w.wanted {
		w.store(w.g.DK, w.at[j], w.dk[j*d:][:d], F(p.EffectiveScale()))
		w.store(w.g.DV, w.at[j], w.dv[j*dv:][:dv], 1)
		w.sums.weight, w.sums.square = max(w.sums.weight, w.weights[j]), max(w.sums.square, w.squares[j])
	}
	return w.sums
}

// store writes scale times a sum to a row of a gradient.
func (w *pairWorker[F, T]) store(to []float64, at int, sum []F, scale F) {
	for e, x := range sum {
		to[at*len(sum)+e] = float64(w.round(scale * x))
	}
}

// row writes dQ of row r and adds what the row gives to the other gradients. The conversions to F
// forbid fused multiply-add.
func (w *pairWorker[F, T]) row(k, v []F, mask attention.Mask, r Row) {
	p, d, dv, l := w.p, w.p.HeadDim, w.p.ValueHeadDim(), w.in.places(w.p)
	at, atLSE := l.query(r), l.lse(r)
	to, whole := at, true
	if w.rows != nil {
		to, whole = w.rows[r]
	}
	score := newScorer[F](w.in, p, mask, r, 1)
	keys := w.wanted
	if whole {
		clear(w.dq)
		defer func() { w.store(w.g.DQ, to, w.dq, F(p.EffectiveScale())) }()
	}
	lse := w.lse[atLSE]
	if math.IsInf(float64(lse), -1) || !whole && len(keys) == 0 {
		return
	}
	q, do := gather(w.q, w.in.Q, at, 1, 1, d), gather(w.do, w.up.DO, at, 1, 1, dv)
	delta := dot(do, w.o[at*dv:][:dv])
	if w.up.DLSE != nil {
		delta -= F(w.up.DLSE[atLSE])
	}
	var dbias []F
	if len(w.dbias) > 0 {
		dbias = w.dbias[biasAt(p, r):][:p.SeqKV]
	}
	kept, keep := p.DropoutRow(r.Batch, r.Head, r.Row), F(p.Dropout.KeepScale())
	pair := func(j int) {
		if !score.sees(j) {
			return // K and V may be anything
		}
		x := F(score.factor * dot(q, k[j*d:][:d]))
		P := F(math.Exp(float64(score.score(x, j) - lse)))
		W, dP := P, dot(do, v[j*dv:][:dv])
		if p.Dropout.On() {
			W, dP = P*keep, dP*keep
			if !kept.Kept(j) {
				W, dP = 0, 0
			}
		}
		term := float64(P) * (math.Abs(float64(dP)) + math.Abs(float64(delta)))
		w.sums.term = max(w.sums.term, term)
		dS := P * (dP - delta)
		w.sums.ds = max(w.sums.ds, math.Abs(float64(dS)))
		dX := w.round(dS * score.derivative(x))
		if dbias != nil {
			if p.Softcap == 0 {
				dS = dX
			}
			dbias[j] += dS
		}
		if whole {
			add(w.dq, dX, k[j*d:][:d])
		}
		if w.at[j] >= 0 {
			w.weights[j] += float64(P)
			w.squares[j] += term * term
			add(w.dk[j*d:][:d], dX, q)
			add(w.dv[j*dv:][:dv], w.round(W), do)
		}
	}
	if whole {
		for j := score.lo; j < score.hi; j++ {
			pair(j)
		}
	} else {
		for _, j := range keys {
			pair(j)
		}
	}
	if sink := F(sink(w.in, p, r.Head, 1)); len(w.dsinks) > 0 && !math.IsInf(float64(sink), -1) {
		w.dsinks[r.Batch*p.NumHeads+r.Head] -= F(math.Exp(float64(sink-lse))) * delta
	}
}

// add adds factor times x to a sum.
func add[F Float](sum []F, factor F, x []F) {
	sum = sum[:len(x)]
	for e, y := range x {
		sum[e] += F(factor * y)
	}
}
