package attntest

import (
	"fmt"
	"sync"
	"testing"

	"github.com/flashvk/flashvk/attention/problem"
	"github.com/flashvk/flashvk/attention/ref"
	"github.com/flashvk/flashvk/dtype"
)

// A Forwarder computes attention.
//
//	q, o   (batch, num_heads, seq_q, head_dim)
//	k, v   (batch, num_kv_heads, seq_kv, head_dim)
//	lse    (batch, num_heads, seq_q), natural log, float32; may be nil
//
// It must hand back all that the implementation may have touched: a device
// implementation uploads the whole backing slice of each of the five tensors
// (Encode), and downloads all five afterwards (Decode), so that the suite sees
// stray writes.
type Forwarder interface {
	Forward(o, lse, q, k, v *Tensor, p problem.Problem) error
}

// A Supporter is a Forwarder that refuses some problems. A case for which
// Supports returns an error is skipped, with the error as the reason.
type Supporter interface {
	Supports(p problem.Problem) error
}

// ForwardFunc is a Forwarder that is one function.
type ForwardFunc func(o, lse, q, k, v *Tensor, p problem.Problem) error

// Forward calls f.
func (f ForwardFunc) Forward(o, lse, q, k, v *Tensor, p problem.Problem) error {
	return f(o, lse, q, k, v, p)
}

// Contiguous makes a Forwarder of a function on contiguous slices in logical
// order, such as ref.Forward[float64], ref.Plain[float64] or
// ref.Model.Forward. The inputs are copied back too, so that a function that
// changes them is found out.
func Contiguous(f func(o, lse, q, k, v []float64, p problem.Problem) error) Forwarder {
	return ForwardFunc(func(o, lse, q, k, v *Tensor, p problem.Problem) error {
		tensors := []*Tensor{o, lse, q, k, v}
		data := make([][]float64, len(tensors))
		for i, t := range tensors {
			if t != nil {
				data[i] = t.Gather()
			}
		}
		if err := f(data[0], data[1], data[2], data[3], data[4], p); err != nil {
			return err
		}
		for i, t := range tensors {
			if t != nil {
				t.Scatter(data[i])
			}
		}
		return nil
	})
}

// A Tolerance returns how far an implementation may be from want, O and LSE of
// the case in logical order, given the inputs.
type Tolerance func(c *Case, o, lse, q, k, v []float64) (ref.Bound, error)

// TwicePlain allows what ref.PlainBound does. It is the tolerance for
// everything that computes in the storage type.
func TwicePlain(c *Case, o, lse, q, k, v []float64) (ref.Bound, error) {
	plain := make([]float64, len(o))
	if err := ref.Plain(plain, nil, q, k, v, c.Problem); err != nil {
		return ref.Bound{}, err
	}
	return ref.PlainBound(o, plain, lse, ref.Measure(q, k, v, c.Problem), c.Problem), nil
}

// Float64 allows what ref.Float64Bound does. It is the tolerance for
// everything that computes in float64 and rounds nothing.
func Float64(c *Case, _, lse, q, k, v []float64) (ref.Bound, error) {
	return ref.Float64Bound(lse, ref.Measure(q, k, v, c.Problem), c.Problem), nil
}

// A Suite is a list of cases, the implementation that says what is right, and
// how far one may be off. It computes what it expects of a case once, however
// many implementations it tests. It may be used by several goroutines.
type Suite struct {
	Cases []*Case
	want  Forwarder
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
	kept.Cases = nil
	for _, c := range s.Cases {
		if keep(c) {
			kept.Cases = append(kept.Cases, c)
		}
	}
	return &kept
}

// TestForward runs every case as a subtest. With -v each says how close it
// came. It fails if got supports none.
func (s *Suite) TestForward(t *testing.T, got Forwarder) {
	t.Helper()
	ran := false
	for _, c := range s.Cases {
		if support, ok := got.(Supporter); ok {
			if err := support.Supports(c.Problem); err != nil {
				t.Run(c.Name, func(t *testing.T) { t.Skip(err) })
				continue
			}
		}
		ran = true
		t.Run(c.Name, func(t *testing.T) {
			report, err := s.Check(c, got)
			if err != nil {
				t.Fatalf("%v\n%v", err, c)
			}
			t.Log(report)
		})
	}
	if !ran {
		t.Errorf("none of %d cases is supported", len(s.Cases))
	}
}

// Check runs got on one case and returns the first thing wrong with it, or nil.
// In this order: inputs unchanged; canaries on both sides and between the rows
// of each output intact; every element written; infinities equal, and rows that
// see nothing exactly 0; worst error within the tolerance; all of that again,
// bit-equal, with other values in all memory that is not an input.
func (s *Suite) Check(c *Case, got Forwarder) (Report, error) {
	want, err := s.expect(c)
	if err != nil {
		return Report{}, fmt.Errorf("attntest: no expectation for %s: %w", c.Name, err)
	}
	report := Report{Bound: want.bound}
	first := c.newRun(want.in, nanAround)
	if err := first.call(c, got); err != nil {
		return report, err
	}
	if report.O, err = checkValues(first.o, want.o, want.bound.O); err != nil {
		return report, err
	}
	if err := checkEmptyRows(first.o, c); err != nil {
		return report, err
	}
	if first.lse != nil {
		if report.LSE, err = checkValues(first.lse, want.lse, want.bound.LSE); err != nil {
			return report, err
		}
	}
	second := c.newRun(want.in, finiteAround)
	if err := second.call(c, got); err != nil {
		return report, fmt.Errorf("second run: %w", err)
	}
	if err := checkEqual(first.o, second.o, finiteAround); err != nil {
		return report, err
	}
	if first.lse != nil {
		if err := checkEqual(first.lse, second.lse, finiteAround); err != nil {
			return report, err
		}
	}
	return report, nil
}

type inputs struct{ q, k, v []float64 }

// An expectation is what the suite knows about a case, in logical order.
type expectation struct {
	in     inputs
	o, lse []float64
	bound  ref.Bound
}

func (s *Suite) expect(c *Case) (*expectation, error) {
	once, _ := s.memo.LoadOrStore(c, sync.OnceValues(func() (*expectation, error) {
		p := c.Problem
		e := &expectation{}
		e.in.q, e.in.k, e.in.v = c.Input.values(c.Name, p)
		r := c.newRun(e.in, nanAround)
		if r.lse == nil {
			r.lse = newTensor("LSE", Packed, dtype.Float32, p.Batch, p.NumHeads, p.SeqQ)
		}
		if err := s.want.Forward(r.o, r.lse, r.q, r.k, r.v, p); err != nil {
			return nil, err
		}
		e.o, e.lse = r.o.Gather(), r.lse.Gather()
		var err error
		e.bound, err = s.tol(c, e.o, e.lse, e.in.q, e.in.k, e.in.v)
		return e, err
	}))
	return once.(func() (*expectation, error))()
}
