package ref

import (
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/parallel"
)

// pairs computes gradients in arithmetic F, one pair of a row and a key after the other: all
// gradients, or dQ of some rows and dK and dV of some keys. Round rounds as the storage type does,
// or not at all, and roundBias as the storage type of the bias does.
type pairs[F, T Float] struct {
	p                attention.Problem
	in               *Inputs[T]
	up               *Upstream[T]
	o, lse           []F
	round, roundBias func(F) F

	// Where the results of a sample of rows and keys are in g; nil stands for all, in their own places.
	rows map[Row]int
	keys map[Key]int

	g                        Gradients
	dbias, dsinks            []F       // BiasShape, (batch, num_heads); none of a sample
	biasWeights, sinkWeights []float64 // sums of weights, of the same shapes
	biasRounded              []float64 // sums of the squares of what dX round by
}

// pairSums are the sums that bounds are derived from.
type pairSums struct {
	score              float64 // the largest P * the sum of the magnitudes that a score adds up
	scored             float64 // the largest of it * (|dP| + |Delta|)
	valued             float64 // the largest of it * |dO| of the row
	parts              float64 // the largest P * the Euclidean norm of a score's products, of float32
	term               float64 // the largest P * (|dP| + |Delta|)
	square             float64 // the largest sum of its squares of a key
	ds                 float64 // the largest |dS|
	weight, bias, sink float64 // the largest sum of P of a key, of an element of the bias, of a sink
	rounded, shared    float64 // the largest sum of the squares of what dX * max|Q| of a key round by, and dX of an element of the bias
}

// sample makes w compute some rows and keys alone.
func (w *pairs[F, T]) sample(rows []Row, keys []Key) {
	w.rows, w.keys = map[Row]int{}, map[Key]int{}
	for x, r := range rows {
		w.rows[r] = x
	}
	for x, k := range keys {
		w.keys[k] = x
	}
	d, dv := w.p.HeadDim, w.p.ValueHeadDim()
	w.g = Gradients{DQ: make([]float64, len(rows)*d), DK: make([]float64, len(keys)*d), DV: make([]float64, len(keys)*dv)}
}

// compute sets g.
func (w *pairs[F, T]) compute() (all pairSums) {
	p, heads := w.p, w.p.Batch*w.p.NumHeads
	if w.rows == nil {
		w.g = newGradients(p)
		w.dbias, w.dsinks = make([]F, len(w.g.DBias)), make([]F, heads)
		w.biasWeights, w.biasRounded, w.sinkWeights = make([]float64, len(w.g.DBias)), make([]float64, len(w.g.DBias)), make([]float64, heads)
	}
	sums := make([]pairSums, p.Batch*p.NumKVHeads)
	newWorker := func() func(int) {
		fs := func(n int) []F { return make([]F, n) }
		n := p.SeqKV
		x := pairWorker[F, T]{
			pairs: w, dq: fs(p.HeadDim), dk: fs(n * p.HeadDim), dv: fs(n * p.ValueHeadDim()),
			weights: make([]float64, n), squares: make([]float64, n), rounded: make([]float64, n), at: make([]int, n),
		}
		return func(i int) { sums[i] = x.keyHead(i/p.NumKVHeads, i%p.NumKVHeads) }
	}
	if len(w.dbias) > 0 && !(p.Bias.Batch && p.Bias.Heads) { // sums over heads are in one order always
		work := newWorker()
		for i := range sums {
			work(i)
		}
	} else {
		parallel.Workers(len(sums), newWorker)
	}
	for _, x := range sums {
		all.score, all.scored, all.valued = max(all.score, x.score), max(all.scored, x.scored), max(all.valued, x.valued)
		all.parts = max(all.parts, x.parts)
		all.term, all.square = max(all.term, x.term), max(all.square, x.square)
		all.ds, all.rounded, all.weight = max(all.ds, x.ds), max(all.rounded, x.rounded), max(all.weight, x.weight)
	}
	for i, x := range w.dbias {
		w.g.DBias[i] = float64(w.roundBias(x))
	}
	for h := range w.g.DSinks {
		var sum F
		weight := 0.0
		for b := range p.Batch {
			sum, weight = sum+w.dsinks[b*p.NumHeads+h], weight+w.sinkWeights[b*p.NumHeads+h]
		}
		w.g.DSinks[h], all.sink = float64(sum), max(all.sink, weight)
	}
	all.bias, all.shared = largest(w.biasWeights), largest(w.biasRounded)
	return all
}

// pairWorker holds the buffers of one goroutine.
type pairWorker[F, T Float] struct {
	*pairs[F, T]
	k, v                    []F // the keys of a head
	qbuf, dobuf             []F
	kbuf, vbuf, dq, dk, dv  []F
	weights                 []float64 // sums of P of the keys
	squares, rounded        []float64 // sums of the squares of the keys' terms, and of what these round by
	at                      []int     // where dK and dV of the keys are in g; -1: not wanted
	wanted                  []int     // the keys whose dK and dV are wanted
	doSize, qSize, deltaOff float64   // the largest |dO| and |Q| of the row, and what Delta is off by as O is rounded
	sums                    pairSums
}

// keyHead computes the gradients of one key head and of its query heads.
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
	w.k = gather(&w.kbuf, w.in.K, first, step, mask.SeqKV, d)
	w.v = gather(&w.vbuf, w.in.V, first, step, mask.SeqKV, dv)
	clear(w.dk)
	clear(w.dv)
	clear(w.weights)
	clear(w.squares)
	clear(w.rounded)
	perKV := p.NumHeads / p.NumKVHeads
	for head := kv * perKV; head < (kv+1)*perKV; head++ {
		for i := range mask.SeqQ {
			w.row(mask, Row{batch, head, i})
		}
	}
	for _, j := range w.wanted {
		w.store(w.g.DK, w.at[j], w.dk[j*d:][:d], F(p.EffectiveScale()))
		w.store(w.g.DV, w.at[j], w.dv[j*dv:][:dv], 1)
		w.sums.weight, w.sums.square, w.sums.rounded = max(w.sums.weight, w.weights[j]), max(w.sums.square, w.squares[j]), max(w.sums.rounded, w.rounded[j])
	}
	return w.sums
}

// store writes scale times a sum to a row of a gradient.
func (w *pairWorker[F, T]) store(to []float64, at int, sum []F, scale F) {
	for e, x := range sum {
		to[at*len(sum)+e] = float64(w.round(scale * x))
	}
}

// row writes dQ of row r and adds the row's terms to the other gradients.
func (w *pairWorker[F, T]) row(mask attention.Mask, r Row) {
	p, d, dv, l := w.p, w.p.HeadDim, w.p.ValueHeadDim(), w.in.places(w.p)
	at, atLSE := l.query(r), l.lse(r)
	to, whole := at, true
	if w.rows != nil {
		to, whole = w.rows[r]
	}
	if whole {
		clear(w.dq)
		defer func() { w.store(w.g.DQ, to, w.dq, F(p.EffectiveScale())) }()
	}
	lse, score := w.lse[atLSE], newScorer[F](w.in, p, mask, r)
	if math.IsInf(float64(lse), -1) || !whole && len(w.wanted) == 0 {
		return
	}
	q, do := gather(&w.qbuf, w.in.Q, at, 1, 1, d), gather(&w.dobuf, w.up.DO, at, 1, 1, dv)
	w.doSize, w.qSize, w.deltaOff = largest(do), largest(q), 0
	for e, x := range w.o[at*dv:][:dv] {
		w.deltaOff += float64(do[e]) * (float64(p.DType.Round(float32(x))) - float64(x))
	}
	delta := dot(do, w.o[at*dv:][:dv])
	if w.up.DLSE != nil {
		delta -= F(w.up.DLSE[atLSE])
	}
	kept := p.DropoutRow(r.Batch, r.Head, r.Row)
	if whole {
		for j := score.lo; j < score.hi; j++ {
			w.pair(&score, &kept, r, j, q, do, delta, lse, true)
		}
	} else {
		for _, j := range w.wanted {
			w.pair(&score, &kept, r, j, q, do, delta, lse, false)
		}
	}
	if sink := sinkOf[F](w.in, p, r.Head); len(w.dsinks) > 0 && !math.IsInf(float64(sink), -1) {
		weight := F(math.Exp(float64(sink - lse)))
		w.dsinks[r.Batch*p.NumHeads+r.Head] -= weight * delta
		w.sinkWeights[r.Batch*p.NumHeads+r.Head] += float64(weight)
	}
}

// pair adds what row r and key j give to the gradients: to dQ if the row is wanted. The conversions to
// F forbid fused multiply-add.
func (w *pairWorker[F, T]) pair(score *scorer[F, T], kept *attention.DropoutRow, r Row, j int, q, do []F, delta, lse F, wanted bool) {
	if !score.sees(j) {
		return // K and V may be anything
	}
	p, d, dv := &w.p, len(q), len(do)
	k := w.k[j*d:][:d]
	x := F(score.factor * dot(q, k))
	sum, size := score.sum(x, j)
	P := F(math.Exp(float64(sum - lse)))
	size *= float64(P)
	w.sums.score, w.sums.valued = max(w.sums.score, size), max(w.sums.valued, size*w.doSize)
	if p.DType == dtype.Float32 {
		w.sums.parts = max(w.sums.parts, math.Abs(float64(P*score.factor*score.derivative(x)))*productsNorm(q, k))
	}
	W, dP := P, dot(do, w.v[j*dv:][:dv])
	if p.Dropout.On() {
		keep := F(p.Dropout.KeepScale())
		W, dP = P*keep, dP*keep
		if !kept.Kept(j) {
			W, dP = 0, 0
		}
	}
	both := math.Abs(float64(dP)) + math.Abs(float64(delta))
	term := float64(P) * both
	w.sums.term, w.sums.scored = max(w.sums.term, term), max(w.sums.scored, size*both)
	dS := P * (dP - delta)
	w.sums.ds = max(w.sums.ds, math.Abs(float64(dS)))
	dX := w.round(dS * score.derivative(x))
	rounded := math.Pow(p.DType.Eps()/2*float64(dX), 2)/3 + math.Pow(float64(P)*w.deltaOff, 2)
	if len(w.dbias) > 0 {
		at := biasAt(w.p, r) + j
		if p.Softcap == 0 {
			dS = dX
		}
		w.dbias[at] += dS
		w.biasWeights[at] += float64(P)
		w.biasRounded[at] += rounded
	}
	if wanted {
		add(w.dq, dX, k)
	}
	if w.at[j] >= 0 {
		w.weights[j] += float64(P)
		w.squares[j] += term * term
		w.rounded[j] += rounded * w.qSize * w.qSize
		add(w.dk[j*d:][:d], dX, q)
		add(w.dv[j*dv:][:dv], w.round(W), do)
	}
}
