package ref

import (
	"fmt"
	"math"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/parallel"
)

// Forward computes softmax attention in float64 with all features, by the formulas at
// attention.Problem:
//
//	S   = Scale * Q * Kᵀ, and what features make of it
//	P   = softmax(S) over the visible keys of each row and the sink
//	O   = P * V, of the weights that dropout keeps
//	LSE = log(sum(exp(S))) of each row, natural logarithm, with the sink
//
// Without rows, o and lse have the shapes attention.Problem.OShape and LSEShape. Otherwise row x of o
// (len(rows), value_dim) and of lse (len(rows)) belongs to rows[x], and only rows cost time.
// Lse may be nil. Query head h reads key head h / (num_heads/num_kv_heads). Keys and values that a
// row sees must be finite; hidden keys and values may be anything.
//
// A row that sees no key has O = 0 and LSE = -Inf, or the sink. Rows of a Varlen that are in no
// sequence keep what o and lse hold.
//
// The error names the argument that is not valid.
func Forward[T Float](o, lse []float64, in Inputs[T], p attention.Problem, rows []Row) error {
	return forward(o, lse, &in, p, rows, exact, nil)
}

// Plain evaluates the formula of Forward as a straightforward program in the storage type would, one
// operation after the other:
//
//	S   = float32(Scale) * (sum over head_dim, float32)     float32, as is what features make of it
//	P   = exp(S - max) / sum(exp(S - max))                  float32, then rounded to p.DType
//	O   = sum over keys of P * V, float32                   rounded to p.DType at the end
//	LSE = max + log(sum)                                    float32
//
// For float32 nothing is rounded further. The difference from Forward is the error of the format
// itself, from which PlainBound derives a kernel's tolerance. Inputs are rounded to float32.
func Plain[T Float](o, lse []float64, in Inputs[T], p attention.Problem, rows []Row) error {
	return forward(o, lse, &in, p, rows, p.DType.Round, nil)
}

// exact rounds nothing.
func exact(x float64) float64 { return x }

// chunkRows rows of a key head are computed by one goroutine.
const chunkRows = 64

// forward computes in arithmetic F; round rounds as the storage type does. Doubt gets what the scores of
// each row may be off by, if it is not nil.
func forward[F, T Float](o, lse []float64, in *Inputs[T], p attention.Problem, rows []Row, round func(F) F, doubt func(float64)) error {
	if err := in.check(p); err != nil {
		return err
	}
	n, all := len(rows), rows == nil
	if all {
		n, rows = product(p.LSEShape()), AllRows(*in, p)
	}
	if err := checkSlices(false, []slice{{"o", true, len(o), []int{n, p.ValueHeadDim()}}, {"lse", lse != nil, len(lse), []int{n}}}); err != nil {
		return err
	}
	var quant *quantised[T]
	if p.Quant != dtype.NoQuant {
		quant = in.Quantised(p).quant
		in = &quant.in
	}
	l, heads := in.places(p), make([][]int, p.Batch*p.NumKVHeads) // numbers of rows by key head
	for x, r := range rows {
		if r.Batch < 0 || r.Batch >= p.Batch || r.Head < 0 || r.Head >= p.NumHeads || r.Row < 0 || r.Row >= l.mask(r.Batch).SeqQ {
			return fmt.Errorf("attention: row (%d, %d, %d) is outside (batch, num_heads, seq_q) = (%d, %d, %d)",
				r.Batch, r.Head, r.Row, p.Batch, p.NumHeads, p.SeqQ)
		}
		h := r.Batch*p.NumKVHeads + r.Head/(p.NumHeads/p.NumKVHeads)
		heads[h] = append(heads[h], x)
	}
	var chunks [][]int
	for _, head := range heads {
		chunks = slices.AppendSeq(chunks, slices.Chunk(head, chunkRows))
	}
	parallel.Workers(len(chunks), func() func(int) {
		w := fwdWorker[F, T]{p: p, in: in, s: make([]F, p.SeqKV), o: make([]F, p.ValueHeadDim()), round: round, quant: quant, doubt: doubt}
		return func(i int) {
			w.load(rows, chunks[i])
			for _, x := range chunks[i] {
				sum, at, atLSE := w.row(rows[x]), x, x
				if all {
					at, atLSE = l.query(rows[x]), l.lse(rows[x])
				}
				for e, y := range w.o {
					o[at*len(w.o)+e] = float64(y)
				}
				if lse != nil {
					lse[atLSE] = float64(sum)
				}
			}
		}
	})
	return nil
}

// fwdWorker holds the buffers of one goroutine.
type fwdWorker[F, T Float] struct {
	p     attention.Problem
	in    *Inputs[T]
	round func(F) F
	quant *quantised[T] // nil without Quant
	doubt func(float64)

	mask             attention.Mask
	first            int // the first key in k and v
	k, v             []F // of the keys that some row of the chunk sees
	kbuf, vbuf, qbuf []F
	s, o             []F // scores and then weights of a row; its result
}

// load sets k and v for some rows of a key head.
func (w *fwdWorker[F, T]) load(rows []Row, chunk []int) {
	p, l, r := w.p, w.in.places(w.p), rows[chunk[0]]
	w.mask = l.mask(r.Batch)
	end := 0
	w.first = w.mask.SeqKV
	for _, x := range chunk {
		lo, hi := w.mask.Keys(rows[x].Row)
		w.first, end = min(w.first, lo), max(end, hi)
	}
	first, step := l.keys(r.Batch, r.Head/(p.NumHeads/p.NumKVHeads))
	first += w.first * step
	w.k = gather(&w.kbuf, w.in.K, first, step, end-w.first, p.HeadDim)
	w.v = gather(&w.vbuf, w.in.V, first, step, end-w.first, p.ValueHeadDim())
}

// row computes O of a row and returns its LSE. It subtracts the largest score first, so that no score
// overflows. The conversions to F forbid fused multiply-add, which some architectures' compilers would
// use.
func (w *fwdWorker[F, T]) row(r Row) F {
	p, d, dv := w.p, w.p.HeadDim, len(w.o)
	score := newScorer[F](w.in, p, w.mask, r)
	q, s := gather(&w.qbuf, w.in.Q, w.in.places(p).query(r), 1, 1, d), w.s[:score.hi-score.lo]
	first, shift := score.lo-w.first, w.shift(r)
	sink := sinkOf[F](w.in, p, r.Head) - shift
	most := sink
	for j := range s {
		s[j] = score.score(F(score.factor*dot(q, w.k[(first+j)*d:][:d])), score.lo+j)
		most = max(most, s[j])
	}
	clear(w.o)
	if math.IsInf(float64(most), -1) { // no key is seen: S - max would be -Inf - -Inf
		return most + shift
	}
	sum := F(math.Exp(float64(sink - most)))
	for j, x := range s {
		s[j] = F(math.Exp(float64(x - most)))
		sum += s[j]
	}
	kept, keep := p.DropoutRow(r.Batch, r.Head, r.Row), F(p.Dropout.KeepScale())
	for j, x := range s {
		weight := x / sum
		if p.Dropout.On() {
			if weight *= keep; !kept.Kept(score.lo + j) {
				weight = 0
			}
		}
		if weight = w.round(weight); weight != 0 { // otherwise the key may be hidden, and its V anything
			add(w.o, weight, w.v[(first+j)*dv:][:dv])
		}
	}
	for i, x := range w.o {
		w.o[i] = w.round(x)
	}
	if w.doubt != nil {
		w.doubt(w.quant.doubts(r, score.lo, func(j int) float64 { return float64(s[j] / sum) }, len(s)))
	}
	return most + F(math.Log(float64(sum))) + shift
}

// shift returns the score of a row of Q and the mean key, which scores of a Quant are without.
func (w *fwdWorker[F, T]) shift(r Row) F {
	if w.quant == nil {
		return 0
	}
	return F(w.p.EffectiveScale()) * F(w.quant.shift[w.in.places(w.p).query(r)])
}
