package ref

import (
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
)

// A BackwardModel is the algorithm of the backward kernels in Go. They are given
// O and LSE and compute the weights again, tile by tile:
//
//	for each row
//	    lse2 = LSE * log2(e)                       0 for -Inf, whose row has no weights
//	    D    = rowsum(dO * O) - dLSE
//	for each tile of keys                          a workgroup, which owns dK and dV of the tile
//	    for each head that reads them, for each tile of rows that sees some of them
//	        P   = exp2(Q * Kᵀ * (Scale * log2(e)) - lse2)
//	        dX  = P * (dO * Vᵀ - D)
//	        dV += round(P)ᵀ * dO
//	        dK += round(dX)ᵀ * Q
//	for each tile of rows                          a workgroup, which owns dQ of the tile
//	    for each tile of keys that some row of it sees
//	        P, dX as above
//	        dQ += round(dX) * K
//	dQ, dK *= Scale
//
// and what features make of that, with every operation in float32. The algorithm
// is Algorithm 2 of Dao, FlashAttention-2 (arXiv:2307.08691), with its loop over rows
// and keys done once for dK and dV and once for dQ, so that no two workgroups add
// to the same element.
//
// Sums over head_dim and over the rows or keys of a tile run in order; matrix
// units are free to take another.
type BackwardModel struct {
	// BlockM and BlockN are the tile's rows and keys.
	BlockM, BlockN int

	// RoundS rounds W and dX to the storage type before they are multiplied,
	// as the matrix paths must.
	RoundS bool
}

// String names the model's parameters.
func (m BackwardModel) String() string {
	s := fmt.Sprintf("model/block_m=%d/block_n=%d", m.BlockM, m.BlockN)
	if m.RoundS {
		s += "/round-s"
	}
	return s
}

// Backward computes what ref.Backward computes, by the model's algorithm, from
// what PlainBackward is given.
func (m BackwardModel) Backward(g Gradients, o, lse []float64, up Upstream[float64], in Inputs[float64], p attention.Problem) error {
	if m.BlockM < 1 || m.BlockN < 1 {
		return fmt.Errorf("attention: model: block_m=%d, block_n=%d: not positive", m.BlockM, m.BlockN)
	}
	if err := checkBackward(&g, &up, &in, p); err != nil {
		return err
	}
	if err := checkSaved(o, lse, p); err != nil {
		return err
	}
	dbias, dsinks := make([]float32, len(g.DBias)), make([]float32, p.Batch*p.NumHeads)
	eachKeyHead(p, g.DBias != nil, func() func(batch, kv int) {
		w := &modelBwd{BackwardModel: m, g: g, dbias: dbias, dsinks: dsinks, o: o, lse: lse, up: &up, in: &in, p: p}
		return w.keyHead
	})
	for i, x := range dbias {
		g.DBias[i] = float64(p.Bias.DType.Round(x))
	}
	sumSinks(g.DSinks, dsinks)
	return nil
}

// modelBwd is what a goroutine works with.
type modelBwd struct {
	BackwardModel
	g             Gradients
	dbias, dsinks []float32
	o, lse        []float64
	up            *Upstream[float64]
	in            *Inputs[float64]
	p             attention.Problem

	k, v []float32 // of the key head
	mask attention.Mask
}

// A modelRow is what the kernels know of a row.
type modelRow struct {
	Row
	q, do   []float32
	lse2, d float32
	score   scorer[float32, float64]
	kept    attention.DropoutRow
}

// row reads row r.
func (w *modelBwd) row(r Row) *modelRow {
	p, l := w.p, w.in.places(w.p)
	at, dv := l.query(r), w.p.ValueHeadDim()
	x := &modelRow{
		Row:   r,
		q:     gather(make([]float32, p.HeadDim), w.in.Q, at, 1, 1, p.HeadDim),
		do:    gather(make([]float32, dv), w.up.DO, at, 1, 1, dv),
		score: newScorer[float32](w.in, p, w.mask, r, math.Log2E),
		kept:  p.DropoutRow(r.Batch, r.Head, r.Row),
	}
	x.d = dot(x.do, gather(make([]float32, dv), w.o, at, 1, 1, dv))
	if w.up.DLSE != nil {
		x.d -= float32(w.up.DLSE[l.lse(r)])
	}
	if lse := float32(w.lse[l.lse(r)]); !math.IsInf(float64(lse), -1) {
		x.lse2 = lse * math.Log2E
	}
	return x
}

// pair returns W, dS and dX of a row and a key.
func (w *modelBwd) pair(r *modelRow, j int) (W, dS, dX float32) {
	if !r.score.sees(j) {
		return 0, 0, 0
	}
	d, dv := w.p.HeadDim, w.p.ValueHeadDim()
	x := r.score.factor * dot(r.q, w.k[j*d:][:d])
	P := exp2(r.score.score(x, j) - r.lse2)
	dP := dot(r.do, w.v[j*dv:][:dv])
	W = P
	if w.p.Dropout.On() {
		keep := float32(0)
		if r.kept.Kept(j) {
			keep = float32(w.p.Dropout.KeepScale())
		}
		W, dP = P*keep, dP*keep
	}
	dS = P * (dP - r.d)
	dX = dS * r.score.derivative(x)
	if w.RoundS {
		W, dX = w.p.DType.Round(W), w.p.DType.Round(dX)
	}
	return W, dS, dX
}

// keyHead computes what the query heads of one key head have to do with.
func (w *modelBwd) keyHead(batch, kv int) {
	p, l := w.p, w.in.places(w.p)
	d, dv := p.HeadDim, p.ValueHeadDim()
	w.mask = l.mask(batch)
	first, step := l.keys(batch, kv)
	w.k = gather(make([]float32, w.mask.SeqKV*d), w.in.K, first, step, w.mask.SeqKV, d)
	w.v = gather(make([]float32, w.mask.SeqKV*dv), w.in.V, first, step, w.mask.SeqKV, dv)
	perKV := p.NumHeads / p.NumKVHeads
	rows := make([]*modelRow, 0, perKV*w.mask.SeqQ)
	for i := range perKV * w.mask.SeqQ {
		rows = append(rows, w.row(Row{batch, kv*perKV + i/w.mask.SeqQ, i % w.mask.SeqQ}))
	}
	for j0 := 0; j0 < w.mask.SeqKV; j0 += w.BlockN {
		w.keyTile(rows, first, step, j0, min(w.BlockN, w.mask.SeqKV-j0))
	}
	for i := range rows {
		if r := rows[i]; r.Row.Row%w.BlockM == 0 {
			w.rowTile(rows[i : i+min(w.BlockM, w.mask.SeqQ-r.Row.Row)])
		}
	}
}

// keyTile computes dK and dV of n keys from j0 on.
func (w *modelBwd) keyTile(rows []*modelRow, first, step, j0, n int) {
	p, d, dv := w.p, w.p.HeadDim, w.p.ValueHeadDim()
	dK, dV := make([]float32, n*d), make([]float32, n*dv)
	tileK, tileV := make([]float32, n*d), make([]float32, n*dv)
	flush := func() {
		add(dK, tileK)
		add(dV, tileV)
		clear(tileK)
		clear(tileV)
	}
	for _, r := range rows {
		if r.Row.Row%w.BlockM == 0 {
			flush()
		}
		for j := range n {
			W, _, dX := w.pair(r, j0+j)
			axpy(tileK[j*d:][:d], dX, r.q)
			axpy(tileV[j*dv:][:dv], W, r.do)
		}
	}
	flush()
	scale := float32(p.EffectiveScale())
	for j := range n {
		at := first + (j0+j)*step
		for e, x := range dK[j*d:][:d] {
			w.g.DK[at*d+e] = float64(p.DType.Round(scale * x))
		}
		for e, x := range dV[j*dv:][:dv] {
			w.g.DV[at*dv+e] = float64(p.DType.Round(x))
		}
	}
}

// rowTile computes dQ of neighbouring rows, and what they give to dBias and
// dSinks.
func (w *modelBwd) rowTile(rows []*modelRow) {
	p, d := w.p, w.p.HeadDim
	scale := float32(p.EffectiveScale())
	for _, r := range rows {
		dQ, tile := make([]float32, d), make([]float32, d)
		for j := range w.mask.SeqKV {
			if j%w.BlockN == 0 {
				add(dQ, tile)
				clear(tile)
			}
			_, dS, dX := w.pair(r, j)
			axpy(tile, dX, w.k[j*d:][:d])
			if w.g.DBias != nil {
				w.dbias[biasAt(p, r.Row)+j] += dS
			}
		}
		add(dQ, tile)
		at := w.in.places(p).query(r.Row)
		for e, x := range dQ {
			w.g.DQ[at*d+e] = float64(p.DType.Round(scale * x))
		}
		if sink := float32(sink(w.in, p, r.Head, math.Log2E)); !math.IsInf(float64(sink), -1) {
			w.dsinks[r.Batch*p.NumHeads+r.Head] -= exp2(sink-r.lse2) * r.d
		}
	}
}

// add adds x to y.
func add(y, x []float32) {
	for i, e := range x {
		y[i] += e
	}
}

// axpy adds a*x to y, but nothing if a is 0: x may then be anything.
func axpy(y []float32, a float32, x []float32) {
	if a == 0 {
		return
	}
	for i, e := range x {
		y[i] += float32(a * e)
	}
}
