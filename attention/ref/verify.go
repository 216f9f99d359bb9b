package ref

import (
	"fmt"

	"github.com/flashvk/flashvk/attention/problem"
)

// A Report says how far a result is from the reference.
type Report struct {
	Rows  int   // how many rows were compared
	O     Diff  // the worst element of O; Index counts within the compared rows
	LSE   Diff  // the worst element of LSE; Index -1 if it was not given
	Bound Bound // how far each may be off

	p    problem.Problem
	rows []Row
}

// Err returns nil if the result is within its bound, and otherwise an error
// that names the worst element.
func (r Report) Err() error {
	if r.O.Off > r.Bound.O {
		at, d := r.rows[r.O.Index/r.p.HeadDim], r.O.Index%r.p.HeadDim
		return fmt.Errorf("attention: O[%d,%d,%d,%d] = %g, want %g: off by %.3g, tolerance %.3g",
			at.Batch, at.Head, at.Row, d, r.O.Got, r.O.Want, r.O.Off, r.Bound.O)
	}
	if r.LSE.Index >= 0 && r.LSE.Off > r.Bound.LSE {
		at := r.rows[r.LSE.Index]
		return fmt.Errorf("attention: LSE[%d,%d,%d] = %g, want %g: off by %.3g, tolerance %.3g",
			at.Batch, at.Head, at.Row, r.LSE.Got, r.LSE.Want, r.LSE.Off, r.Bound.LSE)
	}
	return nil
}

// Verify compares the given rows of o and lse, a kernel's result on q, k and v,
// with the float64 reference, under PlainBound. All are whole tensors,
// contiguous in logical order, as Forward describes; lse may be nil. The error
// is about the arguments; whether the result is right is Report.Err.
//
// The rows usually come from SampleRows: a row costs 8*seq_kv*head_dim
// operations on the host, half in float64 and half in float32.
func Verify[T Float](o, lse, q, k, v []T, p problem.Problem, rows []Row) (Report, error) {
	if err := checkInputs(len(q), len(k), len(v), p); err != nil {
		return Report{}, err
	}
	if len(o) != len(q) {
		return Report{}, fmt.Errorf("attention: o has %d elements, want %d as q", len(o), len(q))
	}
	if total := p.Batch * p.NumHeads * p.SeqQ; lse != nil && len(lse) != total {
		return Report{}, fmt.Errorf("attention: lse has %d elements, want batch*num_heads*seq_q = %d", len(lse), total)
	}
	if len(rows) == 0 {
		return Report{}, fmt.Errorf("attention: no rows to verify")
	}
	n, d := len(rows), p.HeadDim
	wantO, wantLSE, plainO := make([]float64, n*d), make([]float64, n), make([]float64, n*d)
	if err := ForwardRows(wantO, wantLSE, q, k, v, p, rows); err != nil {
		return Report{}, err
	}
	if err := PlainRows(plainO, nil, q, k, v, p, rows); err != nil {
		return Report{}, err
	}
	gotO, gotLSE := make([]float64, n*d), make([]float64, n)
	for x, r := range rows {
		at := (r.Batch*p.NumHeads+r.Head)*p.SeqQ + r.Row
		for e := range d {
			gotO[x*d+e] = float64(o[at*d+e])
		}
		if lse != nil {
			gotLSE[x] = float64(lse[at])
		}
	}
	report := Report{
		Rows:  n,
		O:     MaxDiff(gotO, wantO),
		LSE:   Diff{Index: -1},
		Bound: PlainBound(wantO, plainO, wantLSE, Measure(q, k, v, p), p),
		p:     p,
		rows:  rows,
	}
	if lse != nil {
		report.LSE = MaxDiff(gotLSE, wantLSE)
	}
	return report, nil
}
