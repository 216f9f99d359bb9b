package ref

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/parallel"
)

// A Model is the kernels' algorithm in Go: tiles of BlockM rows walk over
// tiles of BlockN keys with a running maximum m and a running sum l per row,
//
//	m, l = sink * log2(e), 1              -Inf, 0 without one
//	for each tile of keys that some row of the tile needs
//	    S = Q * Kᵀ * (Scale * log2(e)),   or what features make of it; -Inf where masked
//	    if some row's maximum grew enough:
//	        l, O *= exp2(m - max(m, rowmax(S)))
//	        m     = max(m, rowmax(S))
//	    P = exp2(S - m)
//	    l += rowsum(P)
//	    O += round(P) * V                 of the keys that dropout keeps
//	O   = O / l                           * 1/(1-p) with dropout
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
func (m Model) Forward(o, lse []float64, in Inputs[float64], p attention.Problem) error {
	if m.BlockM < 1 || m.BlockN < 1 {
		return fmt.Errorf("attention: model: block_m=%d, block_n=%d: not positive", m.BlockM, m.BlockN)
	}
	if !(m.RescaleAbove >= 0) {
		return fmt.Errorf("attention: model: rescale_above=%g is negative", m.RescaleAbove)
	}
	if err := in.check(p); err != nil {
		return err
	}
	if err := checkOutputs(o, lse, rowsOf(p), p); err != nil {
		return err
	}
	if m.Float64 {
		modelForward[float64](m, o, lse, &in, p)
	} else {
		modelForward[float32](m, o, lse, &in, p)
	}
	return nil
}

func modelForward[F float32 | float64](m Model, o, lse []float64, in *Inputs[float64], p attention.Problem) {
	dv := p.ValueHeadDim()
	blocks := (p.SeqQ + m.BlockM - 1) / m.BlockM
	l := in.places(p)
	parallel.Workers(p.Batch*p.NumHeads*blocks, func() func(int) {
		t := newModelTile[F](m, in, p)
		return func(i int) {
			head, i0 := i/blocks, i%blocks*m.BlockM
			batch, head := head/p.NumHeads, head%p.NumHeads
			mask := l.mask(batch)
			rows := min(m.BlockM, mask.SeqQ-i0)
			if rows <= 0 {
				return // a sequence that is shorter than the longest
			}
			t.start(mask, Row{batch, head, i0}, rows)
			from, to := mask.KeyTiles(i0, i0+rows-1, m.BlockN)
			for tile := from; tile < to; tile++ {
				t.scores(tile * m.BlockN)
				t.rescale()
				t.accumulate(tile * m.BlockN)
			}
			for x := range rows {
				r := Row{batch, head, i0 + x}
				at := l.query(r)
				sum := t.finish(o[at*dv:(at+1)*dv], x)
				if lse != nil {
					lse[l.lse(r)] = sum
				}
			}
		}
	})
}

// A modelTile is what one workgroup keeps while it walks over the keys.
type modelTile[F float32 | float64] struct {
	Model
	in   *Inputs[float64]
	p    attention.Problem
	mask attention.Mask
	row  Row // the first
	rows int // of BlockM, fewer at the end
	keys int // of BlockN, fewer at the end

	score   []scorer[F, float64] // (BlockM)
	q, qbuf []F                  // (BlockM, head_dim); q is qbuf unless no conversion is needed
	o       []F                  // (BlockM, value_dim)
	k, v    []F                  // (BlockN, head_dim) and (BlockN, value_dim), buffers for conversion
	s       []F                  // (BlockM, BlockN), S and then P
	m, l    []F                  // (BlockM), running maximum in log2 units and running sum
	mNew    []F                  // (BlockM), maximum including this tile
}

func newModelTile[F float32 | float64](m Model, in *Inputs[float64], p attention.Problem) *modelTile[F] {
	blockM, blockN := min(m.BlockM, p.SeqQ), min(m.BlockN, p.SeqKV)
	d, dv := p.HeadDim, p.ValueHeadDim()
	return &modelTile[F]{
		Model: m, in: in, p: p,
		score: make([]scorer[F, float64], blockM),
		qbuf:  make([]F, blockM*d), o: make([]F, blockM*dv),
		k: make([]F, blockN*d), v: make([]F, blockN*dv),
		s: make([]F, blockM*blockN),
		m: make([]F, blockM), l: make([]F, blockM), mNew: make([]F, blockM),
	}
}

// start begins the rows r.. of a sequence with that mask. A sink is an element of
// the sum that is there before all keys.
func (t *modelTile[F]) start(mask attention.Mask, r Row, rows int) {
	t.mask, t.row, t.rows = mask, r, rows
	first, step := t.in.places(t.p).queries(r.Batch, r.Head)
	t.q = gather(t.qbuf, t.in.Q, first+r.Row*step, step, rows, t.p.HeadDim)
	clear(t.o)
	sink := F(sink(t.in, t.p, r.Head, math.Log2E))
	for x := range rows {
		t.score[x] = newScorer[F](t.in, t.p, mask, Row{r.Batch, r.Head, r.Row + x}, math.Log2E)
		t.m[x], t.l[x] = sink, 1
		if math.IsInf(float64(sink), -1) {
			t.l[x] = 0
		}
	}
}

// tile returns the keys of src from j0 on, of d elements.
func (t *modelTile[F]) tile(buf []F, src []float64, j0, d int) []F {
	t.keys = min(t.BlockN, t.mask.SeqKV-j0)
	first, step := t.in.places(t.p).keys(t.row.Batch, t.row.Head/(t.p.NumHeads/t.p.NumKVHeads))
	return gather(buf, src, first+j0*step, step, t.keys, d)
}

// scores fills s with the rows times keys j0.. and mNew with the maxima.
func (t *modelTile[F]) scores(j0 int) {
	d := t.p.HeadDim
	k := t.tile(t.k, t.in.K, j0, d)
	for r := range t.rows {
		score := &t.score[r]
		t.mNew[r] = t.m[r]
		for j := range t.keys {
			s := score.score(score.factor*dot(t.q[r*d:(r+1)*d], k[j*d:(j+1)*d]), j0+j)
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
	d := t.p.ValueHeadDim()
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

// accumulate turns s into P and adds it to l and P*V, with the keys j0.., to o.
func (t *modelTile[F]) accumulate(j0 int) {
	d := t.p.ValueHeadDim()
	v := t.tile(t.v, t.in.V, j0, d)
	for r := range t.rows {
		if math.IsInf(float64(t.m[r]), -1) {
			continue // no key seen yet: S - m would be -Inf - -Inf
		}
		o := t.o[r*d : (r+1)*d]
		kept := t.p.DropoutRow(t.row.Batch, t.row.Head, t.row.Row+r)
		for j, s := range t.s[r*t.keys : (r+1)*t.keys] {
			P := exp2(s - t.m[r])
			t.l[r] += P
			if P == 0 || t.p.Dropout.On() && !kept.Kept(j0+j) {
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
	d := t.p.ValueHeadDim()
	if t.l[r] == 0 {
		clear(o)
		return math.Inf(-1)
	}
	inverse := F(t.p.Dropout.KeepScale()) / t.l[r]
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
