package ref

import (
	"fmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/guard"
)

// A Report says how far a result is from the reference.
type Report struct {
	Rows  int        // how many rows were compared
	O     guard.Diff // the worst element of O; Index counts within the compared rows
	LSE   guard.Diff // the worst element of LSE; Index -1 if it was not given
	Bound Bound      // how far each may be off

	p    attention.Problem
	rows []Row
}

// Err returns nil if the result is within its bound, and otherwise an error
// that names the worst element.
func (r Report) Err() error {
	if r.O.Off > r.Bound.O {
		at, d := r.rows[r.O.Index/r.p.ValueHeadDim()], r.O.Index%r.p.ValueHeadDim()
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

// Verify compares the given rows of o and lse, a kernel's result on in, with
// the float64 reference, under PlainBound. All are whole tensors, contiguous in
// logical order, as Forward describes; lse may be nil. The error is about the
// arguments; whether the result is right is Report.Err.
//
// The rows usually come from SampleRows: a row costs
// 4*seq_kv*(head_dim+value_dim) operations on the host, half in float64 and half
// in float32.
func Verify[T Float](o, lse []T, in Inputs[T], p attention.Problem, rows []Row) (Report, error) {
	if err := in.check(p); err != nil {
		return Report{}, err
	}
	if want := product(p.OShape()); len(o) != want {
		return Report{}, fmt.Errorf("attention: o has %d elements, want %d of shape %v", len(o), want, p.OShape())
	}
	if want := product(p.LSEShape()); lse != nil && len(lse) != want {
		return Report{}, fmt.Errorf("attention: lse has %d elements, want %d of shape %v", len(lse), want, p.LSEShape())
	}
	if len(rows) == 0 {
		return Report{}, fmt.Errorf("attention: no rows to verify")
	}
	n, d := len(rows), p.ValueHeadDim()
	wantO, wantLSE, plainO := make([]float64, n*d), make([]float64, n), make([]float64, n*d)
	if err := ForwardRows(wantO, wantLSE, in, p, rows); err != nil {
		return Report{}, err
	}
	if err := PlainRows(plainO, nil, in, p, rows); err != nil {
		return Report{}, err
	}
	gotO, gotLSE := make([]float64, n*d), make([]float64, n)
	for x, r := range rows {
		atO, atLSE := in.At(p, r)
		for e := range d {
			gotO[x*d+e] = float64(o[atO*d+e])
		}
		if lse != nil {
			gotLSE[x] = float64(lse[atLSE])
		}
	}
	report := Report{
		Rows:  n,
		O:     guard.MaxDiff(gotO, wantO),
		LSE:   guard.Diff{Index: -1},
		Bound: PlainBound(wantO, plainO, wantLSE, Measure(in, p), p),
		p:     p,
		rows:  rows,
	}
	if lse != nil {
		report.LSE = guard.MaxDiff(gotLSE, wantLSE)
	}
	return report, nil
}
