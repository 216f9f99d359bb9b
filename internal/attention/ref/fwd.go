package ref

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/parallel"
)

// Forward computes softmax attention in float64 for every batch and head, with
// all features, by the formulas at attention.Problem:
//
//	S   = Scale * Q * Kᵀ, and what features make of it
//	P   = softmax(S) over the visible keys of each row and the sink
//	O   = P * V, of the weights that dropout keeps
//	LSE = log(sum(exp(S))) of each row, natural logarithm, with the sink
//
// All slices are contiguous in logical order; o and lse have the shapes
// attention.Problem.OShape and LSEShape, and lse may be nil. Query head h reads
// key head h / (num_heads/num_kv_heads). What a row sees must be finite; what
// masks hide from it may be anything.
//
// A row that sees no key has O = 0 and LSE = -Inf, or the sink. Rows of a
// Varlen that are in no sequence keep what o and lse hold.
//
// It runs on GOMAXPROCS goroutines, each with at most 4 MiB of scores (or one
// row of them, if that is longer). It returns an error that names the
// argument that is not valid.
func Forward[T Float](o, lse []float64, in Inputs[T], p attention.Problem) error {
	return forward(o, lse, &in, p, nil)
}

// ForwardRows is Forward for the given rows only: row x of o (len(rows),
// value_dim) and of lse (len(rows), or nil) belongs to rows[x]. It reads no key
// head that the rows do not read, and its cost is that of the rows.
func ForwardRows[T Float](o, lse []float64, in Inputs[T], p attention.Problem, rows []Row) error {
	if rows == nil {
		rows = []Row{} // nil means all rows to forward
	}
	return forward(o, lse, &in, p, rows)
}

const (
	// scoresPerChunk bounds a worker's S: 2^19 float64 are 4 MiB.
	scoresPerChunk = 1 << 19
	// maxChunkRows is the height of S that gonum's 64x64 blocks use fully.
	maxChunkRows = 64
	// keysPerBlock keys of K or V are converted at a time: with head_dim 256
	// they take 256 KiB, which stays in cache. From four 64x64 blocks of S on,
	// gonum would start goroutines of its own for each product.
	keysPerBlock = 128
)

// prepare checks the arguments and splits the rows, nil for all, into chunks.
func prepare[T Float](o, lse []float64, in *Inputs[T], p attention.Problem, rows []Row, chunkRows int) ([]chunk, error) {
	if err := in.check(p); err != nil {
		return nil, err
	}
	list, err := chunks(in, p, rows, chunkRows)
	if err != nil {
		return nil, err
	}
	n := len(rows)
	if rows == nil {
		n = rowsOf(p)
	}
	return list, checkSlices(false, []slice{{"o", true, len(o), []int{n, p.ValueHeadDim()}}, {"lse", lse != nil, len(lse), []int{n}}})
}

func forward[T Float](o, lse []float64, in *Inputs[T], p attention.Problem, rows []Row) error {
	chunkRows := min(max(scoresPerChunk/max(p.SeqKV, 1), 1), maxChunkRows)
	list, err := prepare(o, lse, in, p, rows, chunkRows)
	if err != nil {
		return err
	}
	parallel.Workers(len(list), func() func(int) {
		w := &fwdWorker[T]{
			p:     p,
			in:    in,
			q:     make([]float64, chunkRows*p.HeadDim),
			s:     make([]float64, chunkRows*p.SeqKV),
			o:     make([]float64, chunkRows*p.ValueHeadDim()),
			block: make([]float64, keysPerBlock*max(p.HeadDim, p.ValueHeadDim())),
		}
		return func(i int) { w.chunk(o, lse, list[i]) }
	})
	return nil
}

// fwdWorker holds the buffers of one goroutine.
type fwdWorker[T Float] struct {
	p     attention.Problem
	in    *Inputs[T]
	q     []float64 // (chunk rows, head_dim)
	o     []float64 // (chunk rows, value_dim)
	s     []float64 // (chunk rows, keys), S and then P
	block []float64 // (keysPerBlock, head_dim or value_dim) of K or V
}

func (w *fwdWorker[T]) chunk(o, lse []float64, c chunk) {
	p, d, dv := w.p, w.p.HeadDim, w.p.ValueHeadDim()
	l := w.in.places(p)
	mask := l.mask(c.batch)
	lo, hi := c.span(mask)
	rows, keys := len(c.rows), hi-lo
	score := make([]scorer[float64, T], rows)
	for x, r := range c.rows {
		score[x] = newScorer[float64](w.in, p, mask, r, 1)
		for e, y := range w.in.Q[l.query(r)*d:][:d] {
			w.q[x*d+e] = float64(y)
		}
	}
	Q := general(w.q, rows, d, d)
	first, step := l.keys(c.batch, c.kv)

	for j := 0; j < keys; j += keysPerBlock {
		n := min(keysPerBlock, keys-j)
		K := general(gather(w.block, w.in.K, first+(lo+j)*step, step, n, d), n, d, d)
		S := general(w.s[j:], rows, n, keys)
		blas64.Gemm(blas.NoTrans, blas.Trans, score[0].factor, Q, K, 0, S)
	}
	for x, r := range c.rows {
		s := w.s[x*keys : (x+1)*keys]
		for j := range s {
			s[j] = score[x].score(s[j], lo+j)
		}
		sum := softmaxRow(s, sink(w.in, p, r.Head, 1))
		dropRow(s, lo, p, r)
		if lse != nil {
			lse[c.lse[x]] = sum
		}
	}
	clear(w.o[:rows*dv])
	O := general(w.o, rows, dv, dv)
	for j := 0; j < keys; j += keysPerBlock {
		n := min(keysPerBlock, keys-j)
		V := general(gather(w.block, w.in.V, first+(lo+j)*step, step, n, dv), n, dv, dv)
		P := general(w.s[j:], rows, n, keys)
		// Gemm passes over a weight of 0, so that a hidden V may be NaN.
		blas64.Gemm(blas.NoTrans, blas.NoTrans, 1, P, V, 1, O)
	}
	for x, at := range c.o {
		copy(o[at*dv:(at+1)*dv], w.o[x*dv:(x+1)*dv])
	}
}

func general(data []float64, rows, cols, stride int) blas64.General {
	return blas64.General{Rows: rows, Cols: cols, Stride: stride, Data: data}
}
