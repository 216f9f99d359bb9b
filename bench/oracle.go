package bench

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/attention/ref"
)

// An oracle knows what the outputs of a problem should be, on some of its
// rows.
type oracle struct {
	p       attention.Problem
	rows    []ref.Row
	wantO   []float64 // (rows, head_dim)
	wantLSE []float64 // (rows)
	limit   ref.Bound
	total   int // rows of the problem
}

const (
	// checkOperations is what the reference may cost: some seconds at most on
	// a few cores.
	checkOperations = 2e9
	// minCheckRows are compared even where that is not enough.
	minCheckRows = 32
)

// newOracle computes the reference for all rows, or for a sample if all would
// take too long. A row costs 8*seq_kv*head_dim operations: 4 in float64, 4 for
// the plain implementation that the limit is derived from.
func newOracle(q, k, v []float32, p attention.Problem) (*oracle, error) {
	perRow := 8 * float64(p.SeqKV) * float64(p.HeadDim)
	rows := ref.SampleRows(p, max(int(checkOperations/perRow), minCheckRows))
	n := len(rows)
	o := &oracle{
		p: p, rows: rows, wantO: make([]float64, n*p.HeadDim), wantLSE: make([]float64, n),
		total: p.Batch * p.NumHeads * p.SeqQ,
	}
	if err := ref.ForwardRows(o.wantO, o.wantLSE, q, k, v, p, rows); err != nil {
		return nil, err
	}
	plain := make([]float64, n*p.HeadDim)
	if err := ref.PlainRows(plain, nil, q, k, v, p, rows); err != nil {
		return nil, err
	}
	o.limit = ref.PlainBound(o.wantO, plain, o.wantLSE, ref.Measure(q, k, v, p), p)
	return o, nil
}

// check compares whole outputs with the reference. An error is about the
// outputs and names the first rule that they break; the Check is complete all
// the same.
func (o *oracle) check(gotO, gotLSE []float32) (Check, error) {
	d := o.p.HeadDim
	sampledO, sampledLSE := make([]float64, len(o.wantO)), make([]float64, len(o.rows))
	sum := 0.0
	for x, r := range o.rows {
		at := (r.Batch*o.p.NumHeads+r.Head)*o.p.SeqQ + r.Row
		sampledLSE[x] = float64(gotLSE[at])
		for e := range d {
			sampledO[x*d+e] = float64(gotO[at*d+e])
			sum += math.Abs(sampledO[x*d+e] - o.wantO[x*d+e])
		}
	}
	worstO, worstLSE := ref.MaxDiff(sampledO, o.wantO), ref.MaxDiff(sampledLSE, o.wantLSE)
	c := Check{
		Rows: len(o.rows), OfRows: o.total,
		MaxAbs: worstO.Off, MeanAbs: sum / float64(len(o.wantO)), Limit: o.limit.O,
		LSEMaxAbs: worstLSE.Off, LSELimit: o.limit.LSE,
	}
	if worstO.Off > o.limit.O {
		r := o.rows[worstO.Index/d]
		return c, fmt.Errorf("O[%d,%d,%d,%d] is %.6g, want %.6g: off by %.3g, limit %.3g",
			r.Batch, r.Head, r.Row, worstO.Index%d, worstO.Got, worstO.Want, worstO.Off, o.limit.O)
	}
	if worstLSE.Off > o.limit.LSE {
		r := o.rows[worstLSE.Index]
		return c, fmt.Errorf("LSE[%d,%d,%d] is %.6g, want %.6g: off by %.3g, limit %.3g",
			r.Batch, r.Head, r.Row, worstLSE.Got, worstLSE.Want, worstLSE.Off, o.limit.LSE)
	}
	return c, o.finite(gotO, gotLSE)
}

// finite looks at every row, sampled or not: the outputs were filled with NaN,
// so an element that was not written shows.
func (o *oracle) finite(gotO, gotLSE []float32) error {
	p := o.p
	var bad atomic.Int64
	bad.Store(math.MaxInt64)
	parallel(o.total, func(row int) {
		lse := float64(gotLSE[row])
		lo, hi := p.Mask().Keys(row % p.SeqQ)
		fine := !math.IsNaN(lse) && !math.IsInf(lse, 1) && math.IsInf(lse, -1) == (lo == hi)
		for _, x := range gotO[row*p.HeadDim : (row+1)*p.HeadDim] {
			fine = fine && !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0)
		}
		for !fine {
			first := bad.Load()
			fine = int64(row) >= first || bad.CompareAndSwap(first, int64(row))
		}
	})
	row := bad.Load()
	if row == math.MaxInt64 {
		return nil
	}
	head := int(row) / p.SeqQ
	return fmt.Errorf("row [%d,%d,%d] was not written or is not finite", head/p.NumHeads, head%p.NumHeads, int(row)%p.SeqQ)
}
