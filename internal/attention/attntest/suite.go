package attntest

import (
	"fmt"
	"slices"
	"sync"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
)

// A Forwarder computes attention. Shapes are those of package problem; lse,
// natural log, may be nil.
//
// It must hand back all that the implementation may have touched: a device
// implementation uploads the whole backing slice of each tensor (Encode), and
// downloads all afterwards (Decode), so that the suite sees stray writes.
type Forwarder interface {
	Forward(o, lse *guard.View, in Inputs, p attention.Problem) error
}

// Inputs are the tensors that an implementation reads; those of features that
// the problem does not have are nil.
type Inputs struct {
	Q, K, V                 *guard.View
	Bias                    *guard.View
	ALiBiSlopes             *guard.View
	Sinks                   *guard.View
	KeyMask                 *guard.View // dtype.Bool: 1 is visible
	CuSeqlensQ, CuSeqlensKV *guard.View // dtype.Int32
}

// Map returns the inputs with f applied to each tensor. F of a nil tensor is nil. A device
// implementation uploads tensors with it.
func (in Inputs) Map(f func(*guard.View) *guard.View) Inputs {
	return Inputs{
		Q: f(in.Q), K: f(in.K), V: f(in.V),
		Bias: f(in.Bias), ALiBiSlopes: f(in.ALiBiSlopes), Sinks: f(in.Sinks), KeyMask: f(in.KeyMask),
		CuSeqlensQ: f(in.CuSeqlensQ), CuSeqlensKV: f(in.CuSeqlensKV),
	}
}

// List returns the tensors that are there.
func (in Inputs) List() (all []*guard.View) {
	in.Map(func(t *guard.View) *guard.View {
		if t != nil {
			all = append(all, t)
		}
		return t
	})
	return all
}

// contiguous returns copies of all elements in logical order.
func (in *Inputs) contiguous() ref.Inputs[float64] {
	gather := func(t *guard.View) []float64 {
		if t == nil {
			return nil
		}
		return t.Gather()
	}
	lengths := func(t *guard.View) (n []int32) {
		for _, x := range gather(t) {
			n = append(n, int32(x))
		}
		return n
	}
	out := ref.Inputs[float64]{
		Q: gather(in.Q), K: gather(in.K), V: gather(in.V),
		Bias: gather(in.Bias), ALiBiSlopes: gather(in.ALiBiSlopes), Sinks: gather(in.Sinks),
		CuSeqlensQ: lengths(in.CuSeqlensQ), CuSeqlensKV: lengths(in.CuSeqlensKV),
	}
	for _, x := range gather(in.KeyMask) {
		out.KeyMask = append(out.KeyMask, x != 0)
	}
	return out
}

// A Supporter is a Forwarder or Backwarder that refuses some problems. A case for which
// Supports returns an error is skipped, with the error as the reason.
type Supporter interface {
	Supports(p attention.Problem) error
}

// ForwardFunc is a Forwarder that is one function.
type ForwardFunc func(o, lse *guard.View, in Inputs, p attention.Problem) error

// Forward calls f.
func (f ForwardFunc) Forward(o, lse *guard.View, in Inputs, p attention.Problem) error {
	return f(o, lse, in, p)
}

// Contiguous makes a Forwarder of a function on contiguous slices in logical order, such as
// ref.Forward[float64] or ref.Plain[float64]. It also copies Q, K and V back, so that the suite
// finds a function that changes them.
func Contiguous(f func(o, lse []float64, in ref.Inputs[float64], p attention.Problem) error) Forwarder {
	return ForwardFunc(func(o, lse *guard.View, in Inputs, p attention.Problem) error {
		values := in.contiguous()
		outO, outLSE := o.Gather(), []float64(nil)
		if lse != nil {
			outLSE = lse.Gather()
		}
		if err := f(outO, outLSE, values, p); err != nil {
			return err
		}
		o.Scatter(outO)
		if lse != nil {
			lse.Scatter(outLSE)
		}
		in.Q.Scatter(values.Q)
		in.K.Scatter(values.K)
		in.V.Scatter(values.V)
		return nil
	})
}

// A Tolerance returns how far an implementation may be from want, O and LSE of
// the case in logical order, given the inputs.
type Tolerance func(c *Case, o, lse []float64, in ref.Inputs[float64]) (ref.Bound, error)

// TwicePlain allows what ref.PlainBound does. It is the tolerance for
// everything that computes in the storage type.
func TwicePlain(c *Case, o, lse []float64, in ref.Inputs[float64]) (ref.Bound, error) {
	plain := slices.Clone(o) // rows in no sequence keep the elements of o
	if err := ref.Plain(plain, nil, in, c.Problem); err != nil {
		return ref.Bound{}, err
	}
	return ref.PlainBound(o, plain, lse, ref.Measure(in, c.Problem), c.Problem), nil
}

// Float64 allows what ref.Float64Bound does. It is the tolerance for
// everything that computes in float64 and rounds nothing.
func Float64(c *Case, _, lse []float64, in ref.Inputs[float64]) (ref.Bound, error) {
	return ref.Float64Bound(lse, ref.Measure(in, c.Problem), c.Problem), nil
}

// A Suite is a list of cases with a reference implementation and a tolerance. It computes the
// expected result of a case once, however many implementations it tests. Several goroutines may use
// it.
type Suite struct {
	Cases []*Case
	want  Forwarder // nil: NewSuiteOf's
	tol   Tolerance
	memo  *sync.Map // *Case to func() (*expectation, error), computed once
}

// NewSuite returns the suite of a set of cases, which compares with want.
// Kernels are tested by
//
//	NewSuite(Short, Reference, TwicePlain)
func NewSuite(set Set, want Forwarder, tol Tolerance) *Suite {
	return &Suite{Cases: Cases(set), want: want, tol: tol, memo: new(sync.Map)}
}

// Reference is ref.Forward.
var Reference = Contiguous(ref.Forward[float64])

// Where returns the suite of the cases that keep returns true for. It shares
// what is already computed.
func (s *Suite) Where(keep func(*Case) bool) *Suite {
	kept := *s
	kept.Cases = where(s.Cases, keep)
	return &kept
}

// where returns the cases that keep returns true for.
func where(cases []*Case, keep func(*Case) bool) (kept []*Case) {
	for _, c := range cases {
		if keep(c) {
			kept = append(kept, c)
		}
	}
	return kept
}

// TestForward runs every case of a suite as a subtest. With -v each prints its error. It fails if
// got supports no case.
func TestForward[S guard.Parent[S]](t S, s *Suite, got Forwarder) {
	t.Helper()
	runCases(t, s.Cases, got, func(t S, c *Case) {
		report, err := s.Check(c, got)
		if err != nil {
			t.Fatalf("%v\n%v", err, c)
		}
		t.Log(report)
	})
}

// runCases runs check for each case as a subtest. It skips cases that got refuses, and fails if
// these are all.
func runCases[S guard.Parent[S]](t S, cases []*Case, got any, check func(t S, c *Case)) {
	t.Helper()
	ran := false
	for _, c := range cases {
		if support, ok := got.(Supporter); ok {
			if err := support.Supports(c.Problem); err != nil {
				t.Run(c.Name, func(t S) { t.Skip(err) })
				continue
			}
		}
		ran = true
		t.Run(c.Name, func(t S) { check(t, c) })
	}
	if !ran {
		t.Errorf("none of %d cases is supported", len(cases))
	}
}

// Check runs got on one case and returns the first thing wrong with it, or nil.
// In this order: inputs unchanged; canaries on both sides and between the rows
// of each output intact; every element written; infinities equal, and rows that
// see nothing exactly 0; worst error within the tolerance; all of that again,
// bit-equal, with other values in all memory that is not an input and in the
// keys that masks hide from all rows.
func (s *Suite) Check(c *Case, got Forwarder) (Report, error) {
	want, err := s.expect(c)
	if err != nil {
		return Report{}, fmt.Errorf("attntest: no expectation for %s: %w", c.Name, err)
	}
	report := Report{Bound: want.bound}
	first := c.newRun(want.in, &guard.NotFinite)
	if err := first.call(c, got); err != nil {
		return report, err
	}
	if want.rows != nil {
		report, err = c.checkRows(first, want)
	} else {
		err = c.checkAll(first, want, &report)
	}
	if err != nil {
		return report, err
	}
	if err := checkEmptyRows(first.o, c, want.in); err != nil {
		return report, err
	}
	second := c.newRun(want.in, &guard.Finite)
	if err := second.call(c, got); err != nil {
		return report, fmt.Errorf("second run: %w", err)
	}
	if err := guard.Equal(c.results(first.o), c.results(second.o)); err != nil {
		return report, err
	}
	if first.lse != nil {
		if err := guard.Equal(c.results(first.lse), c.results(second.lse)); err != nil {
			return report, err
		}
	}
	return report, nil
}

// checkAll compares O and LSE with the expected ones.
func (c *Case) checkAll(r *run, want *expectation, report *Report) (err error) {
	if report.O, err = c.results(r.o).Compare(want.o, want.bound.O); err != nil || r.lse == nil {
		return err
	}
	report.LSE, err = c.results(r.lse).Compare(want.lse, want.bound.LSE)
	return err
}

// An expectation is the expected result of a case, in logical order. O and lse lack rows that are
// in no sequence.
type expectation struct {
	in     ref.Inputs[float64]
	o, lse []float64
	bound  ref.Bound
	rows   []ref.Row // that o and lse are of; nil: all
}

func (s *Suite) expect(c *Case) (*expectation, error) {
	once, _ := s.memo.LoadOrStore(c, sync.OnceValues(func() (*expectation, error) {
		if s.want == nil {
			return c.expectDirectly()
		}
		p := c.Problem
		e := &expectation{in: c.values()}
		r := c.newRun(e.in, &guard.NotFinite)
		if r.lse == nil {
			r.lse = newTensor("LSE", Packed, dtype.Float32, p.LSEShape()...)
		}
		clear(r.o.Data)
		clear(r.lse.Data)
		if err := s.want.Forward(r.o, r.lse, r.in, p); err != nil {
			return nil, err
		}
		var err error
		e.bound, err = s.tol(c, r.o.Gather(), r.lse.Gather(), e.in)
		e.o, e.lse = c.results(r.o).Gather(), c.results(r.lse).Gather()
		return e, err
	}))
	return once.(func() (*expectation, error))()
}
