package ref

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"github.com/flashvk/flashvk/attention/problem"
)

// Forward computes softmax attention in float64 for every batch and head,
//
//	S   = Scale * Q * Kᵀ
//	P   = softmax(S) over the visible keys of each row
//	O   = P * V
//	LSE = log(sum(exp(S))) of each row, natural logarithm
//
// All slices are contiguous in logical order: q and o (batch, num_heads,
// seq_q, head_dim), k and v (batch, num_kv_heads, seq_kv, head_dim), lse
// (batch, num_heads, seq_q) or nil. Query head h reads key head
// h / (num_heads/num_kv_heads). Inputs must be finite.
//
// If p.Causal, the mask is drawn at problem.Problem. A row that sees no key
// has O = 0 and LSE = -Inf.
//
// It runs on GOMAXPROCS goroutines, each with at most 4 MiB of scores (or one
// row of them, if that is longer). It returns an error that names the
// argument that is not valid.
func Forward[T Float](o, lse []float64, q, k, v []T, p problem.Problem) error {
	return forward(o, lse, q, k, v, p, nil)
}

// ForwardRows is Forward for the given rows only: row x of o (len(rows),
// head_dim) and of lse (len(rows), or nil) belongs to rows[x]. It reads no key
// head that the rows do not read, and its cost is that of the rows.
func ForwardRows[T Float](o, lse []float64, q, k, v []T, p problem.Problem, rows []Row) error {
	if rows == nil {
		rows = []Row{} // nil means all rows to forward
	}
	return forward(o, lse, q, k, v, p, rows)
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

func forward[T Float](o, lse []float64, q, k, v []T, p problem.Problem, rows []Row) error {
	if err := checkInputs(len(q), len(k), len(v), p); err != nil {
		return err
	}
	chunkRows := min(max(scoresPerChunk/p.SeqKV, 1), maxChunkRows)
	list, err := chunks(p, rows, chunkRows)
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
	parallel(len(list), func() func(int) {
		w := &fwdWorker{
			p:     p,
			q:     make([]float64, chunkRows*p.HeadDim),
			s:     make([]float64, chunkRows*p.SeqKV),
			o:     make([]float64, chunkRows*p.HeadDim),
			block: make([]float64, keysPerBlock*p.HeadDim),
		}
		return func(i int) { forwardChunk(w, o, lse, q, k, v, list[i]) }
	})
	return nil
}

// fwdWorker holds the buffers of one goroutine.
type fwdWorker struct {
	p     problem.Problem
	q, o  []float64 // (chunk rows, head_dim)
	s     []float64 // (chunk rows, keys), S and then P
	block []float64 // (keysPerBlock, head_dim) of K or V
}

func forwardChunk[T Float](w *fwdWorker, o, lse []float64, q, k, v []T, c chunk) {
	p, d := w.p, w.p.HeadDim
	rows, keys := len(c.rows), c.maxVisible(w.p)
	for x, row := range c.rows {
		for e := range d {
			w.q[x*d+e] = float64(q[row*d+e])
		}
	}
	clear(w.o[:rows*d])
	Q := general(w.q, rows, d, d)
	O := general(w.o, rows, d, d)
	head := c.kv * p.SeqKV * d

	for j := 0; j < keys; j += keysPerBlock {
		n := min(keysPerBlock, keys-j)
		K := general(convert(w.block, k[head+j*d:head+(j+n)*d]), n, d, d)
		S := general(w.s[j:], rows, n, keys)
		blas64.Gemm(blas.NoTrans, blas.Trans, p.EffectiveScale(), Q, K, 0, S)
	}
	for x := range rows {
		sum := softmaxRow(w.s[x*keys:(x+1)*keys], c.visible(x, p))
		if lse != nil {
			lse[c.at[x]] = sum
		}
	}
	for j := 0; j < keys; j += keysPerBlock {
		n := min(keysPerBlock, keys-j)
		V := general(convert(w.block, v[head+j*d:head+(j+n)*d]), n, d, d)
		P := general(w.s[j:], rows, n, keys)
		blas64.Gemm(blas.NoTrans, blas.NoTrans, 1, P, V, 1, O)
	}
	for x, at := range c.at {
		copy(o[at*d:(at+1)*d], w.o[x*d:(x+1)*d])
	}
}

func general(data []float64, rows, cols, stride int) blas64.General {
	return blas64.General{Rows: rows, Cols: cols, Stride: stride, Data: data}
}
