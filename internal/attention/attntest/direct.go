package attntest

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
)

// NewSuiteOf returns a suite of these cases, which compares with ref.Forward and
// allows what TwicePlain does. It looks at Case.Sample.
func NewSuiteOf(cases ...*Case) *Suite {
	return &Suite{Cases: cases, memo: new(sync.Map)}
}

// NewBackwardSuiteOf returns a suite of these cases, which compares with ref.Backward and allows
// what PlainGradients does. It observes Case.Sample. If a case is compared on a sample, saved
// computes its O and LSE, or ref.Saved if saved is nil.
func NewBackwardSuiteOf(saved Forwarder, cases ...*Case) *BackwardSuite {
	return &BackwardSuite{Cases: cases, saved: saved, memo: new(sync.Map)}
}

// Pack sets the fields that follow from the Lengths of the case, if it has some.
func (c *Case) Pack() {
	if c.Lengths != nil {
		c.packed()
	}
}

const (
	// minSampleRows and minSampleKeys are compared even where they cost more than
	// Case.Sample.
	minSampleRows, minSampleKeys = 16, 8
)

// rowOperations returns what a row of the forward pass costs: half in float64, half for
// the bound.
func (c *Case) rowOperations() float64 {
	p := c.Problem
	return 4 * float64(p.SeqKV) * float64(p.HeadDim+p.ValueHeadDim())
}

// sampleRows returns the rows that a case is compared on, nil for all.
func (c *Case) sampleRows(in ref.Inputs[float64]) []ref.Row {
	if c.Sample == 0 || 2*c.FLOPs() <= c.Sample {
		return nil
	}
	return ref.SampleRows(in, c.Problem, max(int(c.Sample/c.rowOperations()), minSampleRows))
}

// expectDirectly computes an expectation with package ref, for a suite without a reference of its
// own.
func (c *Case) expectDirectly() (*expectation, error) {
	p := c.Problem
	e := &expectation{in: c.values()}
	if rows := c.sampleRows(e.in); rows != nil {
		return e, c.expectRows(e, rows)
	}
	o, lse := make([]float64, product(p.OShape())), make([]float64, product(p.LSEShape()))
	if err := ref.Forward(o, lse, e.in, p); err != nil {
		return nil, err
	}
	var err error
	e.bound, err = TwicePlain(c, o, lse, e.in)
	e.o, e.lse = c.resultsOf("O", o, p.OShape()), c.resultsOf("LSE", lse, p.LSEShape())
	return e, err
}

// resultsOf returns the elements of an output that are in a sequence.
func (c *Case) resultsOf(name string, values []float64, shape []int) []float64 {
	t := newTensor(name, Packed, dtype.Float32, shape...)
	part := c.results(t)
	if part == t {
		return values
	}
	t.Scatter(values)
	return part.Gather()
}

// expectRows computes an expectation of some rows.
func (c *Case) expectRows(e *expectation, rows []ref.Row) error {
	p, n := c.Problem, len(rows)
	e.rows, e.o, e.lse = rows, make([]float64, n*p.ValueHeadDim()), make([]float64, n)
	if err := ref.ForwardRows(e.o, e.lse, e.in, p, rows); err != nil {
		return err
	}
	plain := make([]float64, len(e.o))
	if err := ref.PlainRows(plain, nil, e.in, p, rows); err != nil {
		return err
	}
	e.bound = ref.PlainBound(e.o, plain, e.lse, ref.Measure(e.in, p), p)
	return nil
}

// checkRows compares the rows of an expectation, and wants all others to be written and
// finite.
func (c *Case) checkRows(r *run, e *expectation) (report Report, err error) {
	p, d := c.Problem, c.Problem.ValueHeadDim()
	report.Bound = e.bound
	if err := c.results(r.o).CheckFinite(); err != nil {
		return report, err
	}
	whole := r.o.Gather()
	got := make([]float64, 0, len(e.o))
	for _, row := range e.rows {
		at, _ := e.in.At(p, row)
		got = append(got, whole[at*d:(at+1)*d]...)
	}
	if report.O = guard.MaxDiff(got, e.o); !(report.O.Off <= e.bound.O) {
		return report, c.sampleError("O", e.rows[report.O.Index/d], report.O, e.bound.O)
	}
	if r.lse == nil {
		return report, nil
	}
	whole = r.lse.Gather()
	for n := range e.in.NumRows(p) {
		row := e.in.Row(p, n)
		_, at := e.in.At(p, row)
		empty := e.in.SeesNothing(p, row) && !(p.Sinks && !math.IsInf(e.in.Sinks[row.Head], -1))
		if x := whole[at]; math.IsNaN(x) || math.IsInf(x, 1) || math.IsInf(x, -1) != empty {
			return report, fmt.Errorf("LSE = %g at %+v, which sees nothing: %v", x, row, empty)
		}
	}
	got = got[:0]
	for _, row := range e.rows {
		_, at := e.in.At(p, row)
		got = append(got, whole[at])
	}
	if report.LSE = guard.MaxDiff(got, e.lse); !(report.LSE.Off <= e.bound.LSE) {
		return report, c.sampleError("LSE", e.rows[report.LSE.Index], report.LSE, e.bound.LSE)
	}
	return report, nil
}

func (c *Case) sampleError(name string, at any, d guard.Diff, bound float64) error {
	return fmt.Errorf("%s = %.9g, want %.9g: off by %.3g, tolerance %.2g at %+v of a sample", name, d.Got, d.Want, d.Off, bound, at)
}

// expectDirectly is that of Suite for the backward pass.
func (s *BackwardSuite) expectDirectly(c *Case) (*bwdExpectation, error) {
	p := c.Problem
	e := &bwdExpectation{in: c.values(), up: c.upstream()}
	if rows := c.sampleRows(e.in); rows != nil {
		return e, s.expectSample(c, e)
	}
	var err error
	if e.o, e.lse, err = ref.Saved(e.in, p); err != nil {
		return nil, err
	}
	want, plain := ref.NewGradients(p), ref.NewGradients(p)
	scope, err := ref.BackwardAndMeasure(want, e.lse, e.up, e.in, p)
	if err != nil {
		return nil, err
	}
	if err := ref.PlainBackward(plain, e.o, e.lse, e.up, e.in, p); err != nil {
		return nil, err
	}
	b := ref.GradientBounds(want, plain, scope, p)
	e.want = [][]float64{c.resultsOf("dq", want.DQ, p.QShape()), c.resultsOf("dk", want.DK, p.KShape()), c.resultsOf("dv", want.DV, p.VShape())}
	e.bounds = []float64{b.DQ, b.DK, b.DV}
	if p.Bias.On {
		e.want, e.bounds = append(e.want, want.DBias), append(e.bounds, b.DBias)
	}
	if p.Sinks {
		e.want, e.bounds = append(e.want, want.DSinks), append(e.bounds, b.DSinks)
	}
	return e, nil
}

// expectSample computes an expectation of some rows and keys.
func (s *BackwardSuite) expectSample(c *Case, e *bwdExpectation) (err error) {
	p := c.Problem
	if s.saved == nil {
		e.o, e.lse, err = ref.Saved(e.in, p)
	} else {
		e.o, e.lse, err = c.savedBy(s.saved, e.in)
	}
	if err != nil {
		return err
	}
	d, dv := float64(p.HeadDim), float64(p.ValueHeadDim())
	perRow := 4 * float64(p.SeqKV) * (2*d + dv)
	perKey := 8 * float64(p.SeqQ) * float64(p.NumHeads/p.NumKVHeads) * (d + dv)
	rows := ref.SampleRows(e.in, p, max(int(c.Sample/2/perRow), minSampleRows))
	keys := ref.SampleKeys(e.in, p, max(int(c.Sample/2/perKey), minSampleKeys))
	e.sample, err = ref.SampleBackward(e.o, e.lse, e.up, e.in, p, rows, keys)
	return err
}

// savedBy returns O and LSE of f for a backward pass; 0 where f wrote nothing.
func (c *Case) savedBy(f Forwarder, in ref.Inputs[float64]) (o, lse []float64, err error) {
	with := *c
	with.NoLSE = false
	r := with.newRun(in, &guard.Finite)
	clear(r.o.Data)
	clear(r.lse.Data)
	if err := f.Forward(r.o, r.lse, r.in, c.Problem); err != nil {
		return nil, nil, err
	}
	if err := r.o.CheckFinite(); err != nil {
		return nil, nil, fmt.Errorf("the forward pass before: %w", err)
	}
	o, lse = r.o.Gather(), r.lse.Gather()
	if i := slices.IndexFunc(lse, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 1) }); i >= 0 {
		return nil, nil, fmt.Errorf("the forward pass before: LSE[%d] = %g at %s", i, lse[i], r.lse.Index(i))
	}
	return o, lse, nil
}

// checkSample compares the rows and keys of an expectation, and wants everything else to be
// written and finite.
func (c *Case) checkSample(g Gradients, e *bwdExpectation) (report BackwardReport, err error) {
	for _, t := range g.List() {
		if err := c.results(t).CheckFinite(); err != nil {
			return nil, err
		}
	}
	for _, x := range e.sample.Check(g.DQ.Gather(), g.DK.Gather(), g.DV.Gather()) {
		report = append(report, GradientReport{x.Name, x.Diff, x.Bound})
		if err := x.Err(); err != nil {
			return report, err
		}
	}
	return report, nil
}
