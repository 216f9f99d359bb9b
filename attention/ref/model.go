package ref

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention/problem"
	"github.com/flashvk/flashvk/dtype"
)

// A Model is the kernels' algorithm in Go: tiles of BlockM rows walk over
// tiles of BlockN keys with a running maximum m and a running sum l per row,
//
//	for each tile of keys
//	    S = Q * Kᵀ * (Scale * log2(e)),  -Inf where masked
//	    if some row's maximum grew enough:
//	        l, O *= exp2(m - max(m, rowmax(S)))
//	        m     = max(m, rowmax(S))
//	    P = exp2(S - m)
//	    l += rowsum(P)
//	    O += round(P) * V
//	O   = O / l
//	LSE = m * ln(2) + ln(l)
//
// with every operation in float32. It tells an error of the algorithm from an
// error of a shader, and how far rounding alone may take a kernel. The
// algorithm is Algorithm 1 of Dao, FlashAttention-2 (arXiv:2307.08691).
//
// Sums over head_dim and over the keys of a tile run in order; matrix units
// are free to take another.
type Model struct {
	// BlockM and BlockN are the tile's rows and keys.
	BlockM, BlockN int

	// RoundP rounds P to the storage type before P*V, as the matrix paths
	// must. l is summed before the rounding.
	RoundP bool

	// RescaleAbove is how much, in log2 units, the maximum of some row of the
	// tile must grow before the tile's rows are rescaled; until then m lags
	// behind and P may reach 2^RescaleAbove. 0 rescales at every growth.
	RescaleAbove float64

	// Float64 computes in float64 and rounds nothing, which leaves the
	// algorithm alone to be compared with Forward.
	Float64 bool
}

// String names the model's parameters.
func (m Model) String() string {
	s := fmt.Sprintf("model/block_m=%d/block_n=%d", m.BlockM, m.BlockN)
	if m.RoundP {
		s += "/round-p"
	}
	if m.RescaleAbove > 0 {
		s += fmt.Sprintf("/rescale-above=%g", m.RescaleAbove)
	}
	if m.Float64 {
		s += "/float64"
	}
	return s
}

// Forward computes what ref.Forward computes, by the model's algorithm.
// Arguments are the same. Unless m.Float64, inputs are rounded to float32 and o to
// p.DType.
func (m Model) Forward(o, lse, q, k, v []float64, p problem.Problem) error {
	if m.BlockM < 1 || m.BlockN < 1 {
		return fmt.Errorf("attention: model: block_m=%d, block_n=%d: not positive", m.BlockM, m.BlockN)
	}
	if !(m.RescaleAbove >= 0) {
		return fmt.Errorf("attention: model: rescale_above=%g is negative", m.RescaleAbove)
	}
	if err := checkInputs(len(q), len(k), len(v), p); err != nil {
		return err
	}
	if err := checkOutputs(o, lse, p.Batch*p.NumHeads*p.SeqQ, p); err != nil {
		return err
	}
	if m.Float64 {
		modelForward[float64](m, o, lse, q, k, v, p)
	} else {
		modelForward[float32](m, o, lse, q, k, v, p)
	}
	return nil
}

func modelForward[F float32 | float64](m Model, o, lse, q, k, v []float64, p problem.Problem) {
	d := p.HeadDim
	blocks := (p.SeqQ + m.BlockM - 1) / m.BlockM
	parallel(p.Batch*p.NumHeads*blocks, func() func(int) {
		t := newModelTile[F](m, p)
		return func(i int) {
			head, i0 := i/blocks, i%blocks*m.BlockM
			batch, h := head/p.NumHeads, head%p.NumHeads
			kv := (batch*p.NumKVHeads + h/(p.NumHeads/p.NumKVHeads)) * p.SeqKV * d
			t.rows = min(m.BlockM, p.SeqQ-i0)
			at := head*p.SeqQ + i0
			t.start(q[at*d : (at+t.rows)*d])
			_, keys := p.Mask().Keys(i0 + t.rows - 1)
			for j0 := 0; j0 < keys; j0 += m.BlockN {
				n := min(m.BlockN, p.SeqKV-j0)
				t.scores(i0, j0, convert(t.k, k[kv+j0*d:kv+(j0+n)*d]))
				t.rescale()
				t.accumulate(convert(t.v, v[kv+j0*d:kv+(j0+n)*d]))
			}
			for r := range t.rows {
				sum := t.finish(o[(at+r)*d:(at+r+1)*d], r)
				if lse != nil {
					lse[at+r] = sum
				}
			}
		}
	})
}

// A modelTile is what one workgroup keeps while it walks over the keys.
type modelTile[F float32 | float64] struct {
	Model
	p    problem.Problem
	rows int // of BlockM, fewer at the end
	keys int // of BlockN, fewer at the end

	q, qbuf []F // (BlockM, head_dim); q is qbuf unless no conversion is needed
	o       []F // (BlockM, head_dim)
	k, v    []F // (BlockN, head_dim), buffers for conversion
	s       []F // (BlockM, BlockN), S and then P
	m, l    []F // (BlockM), running maximum in log2 units and running sum
	mNew    []F // (BlockM), maximum including this tile
}

func newModelTile[F float32 | float64](m Model, p problem.Problem) *modelTile[F] {
	blockM, blockN := min(m.BlockM, p.SeqQ), min(m.BlockN, p.SeqKV)
	return &modelTile[F]{
		Model: m, p: p,
		qbuf: make([]F, blockM*p.HeadDim), o: make([]F, blockM*p.HeadDim),
		k: make([]F, blockN*p.HeadDim), v: make([]F, blockN*p.HeadDim),
		s: make([]F, blockM*blockN),
		m: make([]F, blockM), l: make([]F, blockM), mNew: make([]F, blockM),
	}
}

func (t *modelTile[F]) start(q []float64) {
	t.q = convert(t.qbuf, q)
	clear(t.o)
	clear(t.l)
	for r := range t.m {
		t.m[r] = F(math.Inf(-1))
	}
}

// scores fills s with rows i0.. times keys j0.. and mNew with the maxima.
func (t *modelTile[F]) scores(i0, j0 int, k []F) {
	d := t.p.HeadDim
	t.keys = len(k) / d
	c := F(t.p.EffectiveScale() * math.Log2E) // exp(scale*s) = exp2(c*s)
	for r := range t.rows {
		_, visible := t.p.Mask().Keys(i0 + r)
		t.mNew[r] = t.m[r]
		for j := range t.keys {
			s := F(math.Inf(-1))
			if j0+j < visible {
				s = c * dot(t.q[r*d:(r+1)*d], k[j*d:(j+1)*d])
			}
			t.s[r*t.keys+j] = s
			t.mNew[r] = max(t.mNew[r], s)
		}
	}
}

// rescale moves every row to its new maximum if some row grew enough. A row
// that has seen no key yet has m = -Inf and grows by Inf at its first one;
// while mNew is -Inf too the difference is NaN, which is no growth.
func (t *modelTile[F]) rescale() {
	grew := false
	for r := range t.rows {
		grew = grew || t.mNew[r]-t.m[r] > F(t.RescaleAbove)
	}
	if !grew {
		return
	}
	d := t.p.HeadDim
	for r := range t.rows {
		if t.mNew[r] == t.m[r] {
			continue // nothing to do, and -Inf - -Inf would be NaN
		}
		alpha := exp2(t.m[r] - t.mNew[r])
		t.m[r] = t.mNew[r]
		t.l[r] *= alpha
		for i := r * d; i < (r+1)*d; i++ {
			t.o[i] *= alpha
		}
	}
}

// accumulate turns s into P and adds it to l and P*V to o.
func (t *modelTile[F]) accumulate(v []F) {
	d := t.p.HeadDim
	for r := range t.rows {
		if math.IsInf(float64(t.m[r]), -1) {
			continue // no key seen yet: S - m would be -Inf - -Inf
		}
		o := t.o[r*d : (r+1)*d]
		for j, s := range t.s[r*t.keys : (r+1)*t.keys] {
			P := exp2(s - t.m[r])
			t.l[r] += P
			if P == 0 {
				continue
			}
			if t.RoundP && !t.Float64 {
				P = F(t.p.DType.Round(float32(P)))
			}
			for i, x := range v[j*d : (j+1)*d] {
				o[i] += F(P * x)
			}
		}
	}
}

// finish writes row r of o and returns its LSE.
func (t *modelTile[F]) finish(o []float64, r int) float64 {
	d := t.p.HeadDim
	if t.l[r] == 0 {
		clear(o)
		return math.Inf(-1)
	}
	inverse := 1 / t.l[r]
	for i, x := range t.o[r*d : (r+1)*d] {
		o[i] = float64(x * inverse)
	}
	if !t.Float64 {
		round(o, t.p.DType)
	}
	return float64(F(t.m[r]*math.Ln2) + F(math.Log(float64(t.l[r]))))
}

func exp2[F float32 | float64](x F) F { return F(math.Exp2(float64(x))) }

// round rounds float32 values to t in place.
func round(x []float64, t dtype.DType) {
	for i := range x {
		x[i] = float64(t.Round(float32(x[i])))
	}
}
