package bench

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/parallel"
)

// An oracle knows the right outputs of a problem on some of its rows.
type oracle struct {
	p       attention.Problem
	in      ref.Inputs[float32]
	rows    []ref.Row
	wantO   []float64 // (rows, value_dim)
	wantLSE []float64 // (rows)
	limit   ref.Bound
}

const (
	// checkOperations is how many operations a reference may take: some seconds at most on a few
	// cores.
	checkOperations = 2e9
	// minCheckRows are compared even if they take more.
	minCheckRows = 32
)

// newOracle computes the reference for all rows, or for a sample if all would
// take too long. A row costs 4*seq_kv*(head_dim+value_dim) operations: half in
// float64, half for the plain implementation that the limit is derived from.
func newOracle(in ref.Inputs[float32], p attention.Problem) (*oracle, error) {
	perRow := 4 * float64(p.SeqKV) * float64(p.HeadDim+p.ValueHeadDim())
	rows := ref.SampleRows(in, p, max(int(checkOperations/perRow), minCheckRows))
	n, d := len(rows), p.ValueHeadDim()
	o := &oracle{p: p, in: in, rows: rows, wantO: make([]float64, n*d), wantLSE: make([]float64, n)}
	if err := ref.ForwardRows(o.wantO, o.wantLSE, in, p, rows); err != nil {
		return nil, err
	}
	plain := make([]float64, n*d)
	if err := ref.PlainRows(plain, nil, in, p, rows); err != nil {
		return nil, err
	}
	o.limit = ref.PlainBound(o.wantO, plain, o.wantLSE, ref.Measure(in, p), p)
	return o, nil
}

// Check implements Reference: it compares whole outputs. The error names the first rule that they
// break; the Check is complete all the same. A peer has no LSE.
func (o *oracle) Check(got map[string][]float32) (Check, error) {
	gotO, gotLSE := got["o"], got["lse"]
	c, err := o.checkO(gotO)
	if gotLSE == nil {
		return c, err
	}
	sampled := make([]float64, len(o.rows))
	for x, r := range o.rows {
		_, at := o.in.At(o.p, r)
		sampled[x] = float64(gotLSE[at])
	}
	worst := guard.MaxDiff(sampled, o.wantLSE)
	c.LSEMaxAbs, c.LSELimit = worst.Off, o.limit.LSE
	if err != nil {
		return c, err
	}
	if worst.Off > o.limit.LSE {
		r := o.rows[worst.Index]
		return c, fmt.Errorf("LSE[%d,%d,%d] is %.6g, want %.6g: off by %.3g, limit %.3g",
			r.Batch, r.Head, r.Row, worst.Got, worst.Want, worst.Off, o.limit.LSE)
	}
	return c, o.finite(gotO, gotLSE)
}

// checkO is check for O alone, on the rows that are known.
func (o *oracle) checkO(got []float32) (Check, error) {
	d := o.p.ValueHeadDim()
	sampled := make([]float64, len(o.wantO))
	sum := 0.0
	for x, r := range o.rows {
		at, _ := o.in.At(o.p, r)
		for e := range d {
			sampled[x*d+e] = float64(got[at*d+e])
			sum += math.Abs(sampled[x*d+e] - o.wantO[x*d+e])
		}
	}
	worst := guard.MaxDiff(sampled, o.wantO)
	c := Check{
		Rows: len(o.rows), OfRows: o.in.NumRows(o.p), Counted: "rows",
		MaxAbs: worst.Off, MeanAbs: sum / float64(len(o.wantO)), Limit: o.limit.O,
	}
	if worst.Off > o.limit.O {
		r := o.rows[worst.Index/d]
		return c, fmt.Errorf("O[%d,%d,%d,%d] is %.6g, want %.6g: off by %.3g, limit %.3g",
			r.Batch, r.Head, r.Row, worst.Index%d, worst.Got, worst.Want, worst.Off, o.limit.O)
	}
	return c, nil
}

// finite looks at every row, sampled or not: the outputs were filled with NaN,
// so an element that was not written shows.
func (o *oracle) finite(gotO, gotLSE []float32) error {
	p, d := o.p, o.p.ValueHeadDim()
	var bad atomic.Int64
	bad.Store(math.MaxInt64)
	parallel.For(o.in.NumRows(p), func(n int) {
		r := o.in.Row(p, n)
		at, atLSE := o.in.At(p, r)
		lse := float64(gotLSE[atLSE])
		fine := !math.IsNaN(lse) && !math.IsInf(lse, 1) && math.IsInf(lse, -1) == o.empty(r)
		for _, x := range gotO[at*d : (at+1)*d] {
			fine = fine && !math.IsNaN(float64(x)) && !math.IsInf(float64(x), 0)
		}
		for !fine {
			first := bad.Load()
			fine = int64(n) >= first || bad.CompareAndSwap(first, int64(n))
		}
	})
	n := bad.Load()
	if n == math.MaxInt64 {
		return nil
	}
	r := o.in.Row(p, int(n))
	return fmt.Errorf("row [%d,%d,%d] was not written or is not finite", r.Batch, r.Head, r.Row)
}

// empty reports whether a row's sum has no term, so that its LSE is -Inf.
func (o *oracle) empty(r ref.Row) bool {
	if o.p.Sinks && !math.IsInf(float64(o.in.Sinks[r.Head]), -1) {
		return false
	}
	return o.in.SeesNothing(o.p, r)
}
