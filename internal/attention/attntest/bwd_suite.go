package attntest

import (
	"fmt"
	"strings"
	"sync"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
)

// A Backwarder computes the gradients of attention. Shapes are those of attention.Problem. O and
// LSE among the inputs are those of a forward pass. Like a Forwarder it returns all memory that the
// implementation may have touched, and may be a Supporter.
type Backwarder interface {
	Backward(g Gradients, in BackwardInputs, p attention.Problem) error
}

// Gradients are the tensors that a Backwarder writes; DBias and DSinks are nil
// where the problem has no bias or sinks.
type Gradients struct{ DQ, DK, DV, DBias, DSinks *guard.View }

// Map returns the gradients with f applied to each tensor. F of a nil tensor is nil.
func (g Gradients) Map(f func(*guard.View) *guard.View) Gradients {
	return Gradients{DQ: f(g.DQ), DK: f(g.DK), DV: f(g.DV), DBias: f(g.DBias), DSinks: f(g.DSinks)}
}

// List returns the tensors that are there.
func (g Gradients) List() (all []*guard.View) {
	for _, t := range []*guard.View{g.DQ, g.DK, g.DV, g.DBias, g.DSinks} {
		if t != nil {
			all = append(all, t)
		}
	}
	return all
}

// BackwardInputs are the tensors that a Backwarder reads. DLSE is nil where the
// loss does not depend on LSE.
type BackwardInputs struct {
	Inputs
	DO, DLSE, O, LSE *guard.View
}

// Map returns the inputs with f applied to each tensor. F of a nil tensor is nil.
func (in BackwardInputs) Map(f func(*guard.View) *guard.View) BackwardInputs {
	return BackwardInputs{Inputs: in.Inputs.Map(f), DO: f(in.DO), DLSE: f(in.DLSE), O: f(in.O), LSE: f(in.LSE)}
}

// List returns the tensors that are there.
func (in BackwardInputs) List() []*guard.View {
	all := append(in.Inputs.List(), in.DO, in.O, in.LSE)
	if in.DLSE != nil {
		all = append(all, in.DLSE)
	}
	return all
}

// BackwardFunc is a Backwarder that is one function.
type BackwardFunc func(g Gradients, in BackwardInputs, p attention.Problem) error

// Backward calls f.
func (f BackwardFunc) Backward(g Gradients, in BackwardInputs, p attention.Problem) error {
	return f(g, in, p)
}

// ContiguousBackward makes a Backwarder of a function on contiguous slices in
// logical order, such as ref.PlainBackward[float64].
func ContiguousBackward(f func(g ref.Gradients, o, lse []float64, up ref.Upstream[float64], in ref.Inputs[float64], p attention.Problem) error) Backwarder {
	return BackwardFunc(func(g Gradients, in BackwardInputs, p attention.Problem) error {
		gather := func(t *guard.View) []float64 {
			if t == nil {
				return nil
			}
			return t.Gather()
		}
		out := ref.Gradients{DQ: gather(g.DQ), DK: gather(g.DK), DV: gather(g.DV), DBias: gather(g.DBias), DSinks: gather(g.DSinks)}
		up := ref.Upstream[float64]{DO: gather(in.DO), DLSE: gather(in.DLSE)}
		if err := f(out, gather(in.O), gather(in.LSE), up, in.contiguous(), p); err != nil {
			return err
		}
		for i, x := range [][]float64{out.DQ, out.DK, out.DV, out.DBias, out.DSinks} {
			if t := []*guard.View{g.DQ, g.DK, g.DV, g.DBias, g.DSinks}[i]; t != nil {
				t.Scatter(x)
			}
		}
		return nil
	})
}

// BackwardReference is ref.Backward.
var BackwardReference = ContiguousBackward(
	func(g ref.Gradients, _, _ []float64, up ref.Upstream[float64], in ref.Inputs[float64], p attention.Problem) error {
		return ref.Backward(g, up, in, p)
	})

// A GradientTolerance returns how far an implementation may be from want, the gradients of the case
// in logical order. It gets the inputs that the implementation got.
type GradientTolerance func(c *Case, want ref.Gradients, o, lse []float64, up ref.Upstream[float64], in ref.Inputs[float64]) (ref.GradientBound, error)

// PlainGradients allows what ref.GradientBounds does. It is the tolerance for
// everything that computes in the storage type.
func PlainGradients(c *Case, want ref.Gradients, o, lse []float64, up ref.Upstream[float64], in ref.Inputs[float64]) (ref.GradientBound, error) {
	plain := ref.NewGradients(c.Problem)
	if err := ref.PlainBackward(plain, o, lse, up, in, c.Problem); err != nil {
		return ref.GradientBound{}, err
	}
	s, err := ref.MeasureBackward(up, in, c.Problem)
	return ref.GradientBounds(want, plain, s, c.Problem), err
}

// A BackwardSuite is a Suite for Backwarders.
type BackwardSuite struct {
	Cases []*Case
	want  Backwarder // nil: NewBackwardSuiteOf's
	tol   GradientTolerance
	saved Forwarder
	memo  *sync.Map // *Case to func() (*bwdExpectation, error), computed once
}

// NewBackwardSuite returns the suite of a set of cases, which compares with want.
// Kernels are tested by
//
//	NewBackwardSuite(Short, BackwardReference, PlainGradients)
func NewBackwardSuite(set Set, want Backwarder, tol GradientTolerance) *BackwardSuite {
	return &BackwardSuite{Cases: BackwardCases(set), want: want, tol: tol, memo: new(sync.Map)}
}

// Where returns the suite of the cases that keep returns true for. It shares
// what is already computed.
func (s *BackwardSuite) Where(keep func(*Case) bool) *BackwardSuite {
	kept := *s
	kept.Cases = where(s.Cases, keep)
	return &kept
}

// TestBackward runs every case of a suite as a subtest. With -v each prints its error. It fails if
// got supports no case.
func TestBackward[S guard.Parent[S]](t S, s *BackwardSuite, got Backwarder) {
	t.Helper()
	runCases(t, s.Cases, got, func(t S, c *Case) {
		report, err := s.Check(c, got)
		if err != nil {
			t.Fatalf("%v\n%v", err, c.BackwardString())
		}
		t.Log(report)
	})
}

// A BackwardReport says how close an implementation came on one case.
type BackwardReport []GradientReport

// A GradientReport is the worst element of a gradient, by logical index, and how
// far it may be off.
type GradientReport struct {
	Name  string
	Diff  guard.Diff
	Bound float64
}

// String gives the errors beside their bounds.
func (r BackwardReport) String() string {
	parts := make([]string, len(r))
	for i, x := range r {
		parts[i] = fmt.Sprintf("%s off by %.3g of %.3g", x.Name, x.Diff.Off, x.Bound)
	}
	return strings.Join(parts, ", ")
}

// Check runs got on one case and returns the first thing wrong with it, or nil. In
// this order: inputs unchanged, O, LSE and dO among them; canaries on both sides
// and between the rows of each gradient intact; every element written, worst error
// within the tolerance, and exactly 0 what is hidden: dQ of rows that see no key,
// dK and dV of keys that no row sees; all of that again, bit-equal, with other
// values in all memory that is not an input and in the keys that masks hide from
// all rows.
func (s *BackwardSuite) Check(c *Case, got Backwarder) (BackwardReport, error) {
	e, err := s.expect(c)
	if err != nil {
		return nil, fmt.Errorf("attntest: no expectation for %s: %w", c.Name, err)
	}
	first := c.newBackwardRun(e, &guard.NotFinite)
	if err := first.call(c, got); err != nil {
		return nil, err
	}
	var report BackwardReport
	if e.sample != nil {
		report, err = c.checkSample(first.g, e)
	} else {
		report, err = c.checkGradients(first.g, e)
	}
	if err != nil {
		return report, err
	}
	if err := c.checkHidden(first.g, e.in); err != nil {
		return report, err
	}
	second := c.newBackwardRun(e, &guard.Finite)
	if err := second.call(c, got); err != nil {
		return report, fmt.Errorf("second run: %w", err)
	}
	for i, t := range first.g.List() {
		if err := guard.Equal(c.results(t), c.results(second.g.List()[i])); err != nil {
			return report, err
		}
	}
	return report, nil
}

// checkGradients compares gradients with the expected ones.
func (c *Case) checkGradients(g Gradients, e *bwdExpectation) (report BackwardReport, err error) {
	for i, t := range g.List() {
		x := GradientReport{Name: t.Name, Bound: e.bounds[i]}
		if x.Diff, err = c.results(t).Compare(e.want[i], x.Bound); err != nil {
			return report, err
		}
		report = append(report, x)
	}
	return report, nil
}

// A bwdExpectation is what the suite knows about a case, in logical order.
type bwdExpectation struct {
	in     ref.Inputs[float64]
	up     ref.Upstream[float64]
	o, lse []float64
	want   [][]float64                  // of Gradients.List, without rows that are in no sequence
	bounds []float64                    // likewise
	sample *ref.BackwardSample[float64] // instead of want and bounds
}

func (s *BackwardSuite) expect(c *Case) (*bwdExpectation, error) {
	once, _ := s.memo.LoadOrStore(c, sync.OnceValues(func() (*bwdExpectation, error) {
		if s.want == nil {
			return s.expectDirectly(c)
		}
		p := c.Problem
		e := &bwdExpectation{in: c.values(), up: c.upstream()}
		var err error
		if e.o, e.lse, err = ref.Saved(e.in, p); err != nil {
			return nil, err
		}
		r := c.newBackwardRun(e, &guard.NotFinite)
		for _, t := range r.g.List() {
			clear(t.Data)
		}
		if err := s.want.Backward(r.g, r.in, p); err != nil {
			return nil, err
		}
		want := ref.NewGradients(p)
		for _, x := range []struct {
			t    *guard.View
			to   *[]float64
			name string
		}{{r.g.DQ, &want.DQ, "dq"}, {r.g.DK, &want.DK, "dk"}, {r.g.DV, &want.DV, "dv"}, {r.g.DBias, &want.DBias, "dbias"}, {r.g.DSinks, &want.DSinks, "dsinks"}} {
			if x.t != nil {
				*x.to = x.t.Gather()
			}
		}
		b, err := s.tol(c, want, e.o, e.lse, e.up, e.in)
		bounds := map[string]float64{"dq": b.DQ, "dk": b.DK, "dv": b.DV, "dbias": b.DBias, "dsinks": b.DSinks}
		for _, t := range r.g.List() {
			e.want, e.bounds = append(e.want, c.results(t).Gather()), append(e.bounds, bounds[t.Name])
		}
		return e, err
	}))
	return once.(func() (*bwdExpectation, error))()
}
