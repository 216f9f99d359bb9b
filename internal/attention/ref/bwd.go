package ref

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"github.com/flashvk/flashvk/attention"
)

// Backward computes in float64, for every batch and head and with all features,
// the gradients of a loss with respect to the inputs of Forward, from those
// with respect to its results:
//
//	W      = P * Z                             Z is what dropout multiplies a weight with: 0 or 1/(1-p)
//	dP     = (dO * Vᵀ) * Z
//	Delta  = rowsum(P * dP)                    which is rowsum(dO * O)
//	dS     = P * (dP - Delta + dLSE)           the gradient of the scores x of attention.Problem
//	dX     = dS * (1 - tanh(x)²)               with a Softcap, of x before it; dS without
//	dQ     = Scale * dX * K
//	dK     = Scale * dXᵀ * Q                   summed over the heads that read the key head
//	dV     = Wᵀ * dO                           likewise
//	dBias  = dS                                summed over the axes that the bias shares
//	dSinks = sum over batches and rows of exp(sink - LSE) * (dLSE - Delta)
//
// where products of matrices of scores are element by element. These are the
// formulas of section 2.2 of Dao, FlashAttention-2 (arXiv:2307.08691), and what
// features make of them.
//
// All slices are contiguous in logical order. What is hidden from a row gets
// nothing from it, and may be anything, as in Forward: rows that see no key have
// dQ = 0, keys that no row sees dK = dV = 0. With Varlen rows and keys that are in no
// sequence keep what dQ, dK and dV hold, and of dBias what is beyond the lengths
// of a sequence counts nothing.
//
// It returns an error that names the argument that is not valid.
func Backward[T Float](g Gradients, up Upstream[T], in Inputs[T], p attention.Problem) error {
	return backward(g, &up, &in, p, nil)
}

// backward is Backward, and adds up the weights unless that is nil.
func backward[T Float](g Gradients, up *Upstream[T], in *Inputs[T], p attention.Problem, sums *weightSums) error {
	if err := checkBackward(&g, up, in, p); err != nil {
		return err
	}
	clear(g.DBias)
	dsinks := make([]float64, p.Batch*p.NumHeads)
	eachKeyHead(p, g.DBias != nil, func() func(batch, kv int) {
		return newBwdWorker(g, dsinks, up, in, p, sums).keyHead
	})
	sumSinks(g.DSinks, dsinks)
	return nil
}

// weightSums are sums of weights P over the rows that add to the same element of a
// gradient.
type weightSums struct {
	keys  []float64 // (batch, num_kv_heads, seq_kv)
	bias  []float64 // attention.Problem.BiasShape
	sinks []float64 // (batch, num_heads)
	terms []float64 // (batch, num_heads), not a sum but the largest P * (|dP| + |Delta|)
	ds    []float64 // likewise, the largest |dS|
	// squares are sums of the squares of terms, as keys are.
	squares []float64
}

func newWeightSums(p attention.Problem) *weightSums {
	return &weightSums{
		keys:  make([]float64, p.Batch*p.NumKVHeads*p.SeqKV),
		bias:  make([]float64, product(p.BiasShape())),
		sinks: make([]float64, p.Batch*p.NumHeads),
		terms: make([]float64, p.Batch*p.NumHeads),
		ds:    make([]float64, p.Batch*p.NumHeads),

		squares: make([]float64, p.Batch*p.NumKVHeads*p.SeqKV),
	}
}

// add adds the weights P of row r, and that of its sink.
func (s *weightSums) add(P []float64, sink float64, p attention.Problem, r Row) {
	keys := s.keys[(r.Batch*p.NumKVHeads+r.Head/(p.NumHeads/p.NumKVHeads))*p.SeqKV:]
	for j, x := range P {
		keys[j] += x
	}
	if p.Bias.On {
		bias := s.bias[biasAt(p, r):]
		for j, x := range P {
			bias[j] += x
		}
	}
	s.sinks[r.Batch*p.NumHeads+r.Head] += sink
}

// bwdWorker holds the buffers of one goroutine.
type bwdWorker[T Float] struct {
	g      Gradients
	dsinks []float64 // (batch, num_heads)
	up     *Upstream[T]
	in     *Inputs[T]
	p      attention.Problem
	sums   *weightSums
	rows   int // of a chunk, at most

	q, do, dq []float64 // (rows, head_dim), (rows, value_dim), (rows, head_dim)
	k, v      []float64 // (seq_kv, head_dim), (seq_kv, value_dim), where conversion is needed
	dk, dv    []float64 // the same of the gradients
	s         []float64 // (rows, seq_kv), S and then P
	w         []float64 // W
	t         []float64 // dP and then dX
	slope     []float64 // dX / dS
}

func newBwdWorker[T Float](g Gradients, dsinks []float64, up *Upstream[T], in *Inputs[T], p attention.Problem, sums *weightSums) *bwdWorker[T] {
	rows := min(max(scoresPerChunk/max(p.SeqKV, 1), 1), maxChunkRows)
	d, dv := p.HeadDim, p.ValueHeadDim()
	float64s := func(n int) []float64 { return make([]float64, n) }
	return &bwdWorker[T]{
		g: g, dsinks: dsinks, up: up, in: in, p: p, sums: sums, rows: rows,
		q: float64s(rows * d), do: float64s(rows * dv), dq: float64s(rows * d),
		k: float64s(p.SeqKV * d), v: float64s(p.SeqKV * dv), dk: float64s(p.SeqKV * d), dv: float64s(p.SeqKV * dv),
		s: float64s(rows * p.SeqKV), w: float64s(rows * p.SeqKV), t: float64s(rows * p.SeqKV), slope: float64s(rows * p.SeqKV),
	}
}

// keyHead computes what the query heads of one key head have to do with.
func (w *bwdWorker[T]) keyHead(batch, kv int) {
	p, d, dv := w.p, w.p.HeadDim, w.p.ValueHeadDim()
	l := w.in.places(p)
	mask := l.mask(batch)
	first, step := l.keys(batch, kv)
	n := mask.SeqKV
	K := gather(w.k, w.in.K, first, step, n, d)
	V := gather(w.v, w.in.V, first, step, n, dv)
	clear(w.dk[:n*d])
	clear(w.dv[:n*dv])
	perKV := p.NumHeads / p.NumKVHeads
	for head := kv * perKV; head < (kv+1)*perKV; head++ {
		for i := 0; i < mask.SeqQ; i += w.rows {
			w.chunk(K, V, mask, Row{batch, head, i}, min(w.rows, mask.SeqQ-i))
		}
	}
	for j := range n {
		copy(w.g.DK[(first+j*step)*d:][:d], w.dk[j*d:][:d])
		copy(w.g.DV[(first+j*step)*dv:][:dv], w.dv[j*dv:][:dv])
	}
}

// chunk adds what the rows from r on give to dK, dV, dBias and dSinks, and
// writes their dQ.
func (w *bwdWorker[T]) chunk(k, v []float64, mask attention.Mask, r Row, rows int) {
	p, d, dv, keys := w.p, w.p.HeadDim, w.p.ValueHeadDim(), mask.SeqKV
	first, step := w.in.places(p).queries(r.Batch, r.Head)
	first += r.Row * step
	if keys == 0 {
		clear(w.dq[:rows*d])
		w.noKeys(r, rows)
		w.storeDQ(first, step, rows)
		return
	}
	Q := general(gather(w.q, w.in.Q, first, step, rows, d), rows, d, d)
	DO := general(gather(w.do, w.up.DO, first, step, rows, dv), rows, dv, dv)
	K, V := general(k, keys, d, d), general(v, keys, dv, dv)
	S, W, X := general(w.s, rows, keys, keys), general(w.w, rows, keys, keys), general(w.t, rows, keys, keys)
	factor := newScorer[float64](w.in, p, mask, r, 1).factor
	blas64.Gemm(blas.NoTrans, blas.Trans, factor, Q, K, 0, S)
	blas64.Gemm(blas.NoTrans, blas.Trans, 1, DO, V, 0, X)
	for x := range rows {
		at := x * keys
		w.row(w.s[at:][:keys], w.w[at:][:keys], w.t[at:][:keys], w.slope[at:][:keys], mask, Row{r.Batch, r.Head, r.Row + x})
	}
	// Gemm passes over elements of its first factor that are 0, so that a
	// hidden K may be NaN.
	scale := p.EffectiveScale()
	blas64.Gemm(blas.NoTrans, blas.NoTrans, scale, X, K, 0, general(w.dq, rows, d, d))
	blas64.Gemm(blas.Trans, blas.NoTrans, scale, X, Q, 1, general(w.dk, keys, d, d))
	blas64.Gemm(blas.Trans, blas.NoTrans, 1, W, DO, 1, general(w.dv, keys, dv, dv))
	w.storeDQ(first, step, rows)
}

// row turns products of row r into gradients: s, of Q and K, into P, and t, of dO
// and V, into dX.
func (w *bwdWorker[T]) row(s, weights, t, slope []float64, mask attention.Mask, r Row) {
	p := w.p
	score := newScorer[float64](w.in, p, mask, r, 1)
	for j := range s {
		slope[j] = score.derivative(s[j])
		s[j] = score.score(s[j], j)
		if !score.sees(j) {
			t[j], slope[j] = 0, 0 // K and V may be anything
		}
	}
	sink := sink(w.in, p, r.Head, 1)
	lse := softmaxRow(s, sink)
	copy(weights, s)
	dropRow(weights, 0, p, r)
	dropRow(t, 0, p, r)
	delta := dot(s, t) - w.dlse(r)
	if w.sums != nil {
		head := r.Batch*p.NumHeads + r.Head
		term, ds := w.sums.terms[head], w.sums.ds[head]
		squares := w.sums.squares[(r.Batch*p.NumKVHeads+r.Head/(p.NumHeads/p.NumKVHeads))*p.SeqKV:]
		for j, x := range t {
			y := s[j] * (math.Abs(x) + math.Abs(delta))
			term, ds = max(term, y), max(ds, s[j]*math.Abs(x-delta))
			squares[j] += y * y
		}
		w.sums.terms[head], w.sums.ds[head] = term, ds
	}
	for j := range t {
		t[j] = s[j] * (t[j] - delta)
	}
	if w.g.DBias != nil {
		dbias := w.g.DBias[biasAt(p, r):]
		for j, x := range t {
			dbias[j] += x
		}
	}
	for j := range t {
		t[j] *= slope[j]
	}
	w.addSink(r, s, sink, lse, delta)
}

// addSink adds what a row of weights P gives to the gradient of its sink, and to
// the sums of weights.
func (w *bwdWorker[T]) addSink(r Row, P []float64, sink, lse, delta float64) {
	weight := 0.0
	if !math.IsInf(sink, -1) {
		weight = math.Exp(sink - lse)
		w.dsinks[r.Batch*w.p.NumHeads+r.Head] -= weight * delta
	}
	if w.sums != nil {
		w.sums.add(P, weight, w.p, r)
	}
}

// noKeys does the same for rows of a sequence without keys.
func (w *bwdWorker[T]) noKeys(r Row, rows int) {
	sink := sink(w.in, w.p, r.Head, 1)
	for range rows {
		w.addSink(r, nil, sink, sink, -w.dlse(r))
		r.Row++
	}
}

func (w *bwdWorker[T]) dlse(r Row) float64 {
	if w.up.DLSE == nil {
		return 0
	}
	return float64(w.up.DLSE[w.in.places(w.p).lse(r)])
}

func (w *bwdWorker[T]) storeDQ(first, step, rows int) {
	d := w.p.HeadDim
	for x := range rows {
		copy(w.g.DQ[(first+x*step)*d:][:d], w.dq[x*d:][:d])
	}
}
