package attntest

import (
	"fmt"
	"math"
	"slices"

	"github.com/flashvk/flashvk/attention/ref"
	"github.com/flashvk/flashvk/dtype"
)

// A Report says how close an implementation came on one case.
type Report struct {
	O, LSE ref.Diff  // the worst elements, by logical index
	Bound  ref.Bound // how far each may be off
}

// String gives the errors beside their bounds.
func (r Report) String() string {
	return fmt.Sprintf("O off by %.3g of %.3g, LSE by %.3g of %.3g", r.O.Off, r.Bound.O, r.LSE.Off, r.Bound.LSE)
}

// What a run finds in memory that is not its input. Both runs must give the
// same bits, so whatever reaches the output shows either as itself or as a
// difference.
type surroundings struct {
	garbage func(i int) float64 // around and between the rows of Q, K and V
	poison  float64             // everywhere in O and LSE: elements not yet written, and canaries
	name    string
}

var (
	// NaN reaches everything that is computed from it, but a comparison (max) may
	// drop it.
	nanAround = surroundings{
		garbage: func(i int) float64 { return []float64{math.NaN(), math.Inf(1), math.NaN(), math.Inf(-1)}[i%4] },
		poison:  math.NaN(),
		name:    "NaN and Inf",
	}
	// Large finite values win a maximum. They, and the canary, are exact in
	// every dtype.
	finiteAround = surroundings{
		garbage: func(i int) float64 { return 28672 * float64(1-i%2*2) },
		poison:  -12288,
		name:    "±28672",
	}
)

// run holds the tensors of one call.
type run struct {
	q, k, v, o, lse *Tensor // lse is nil if the case has none
	around          surroundings
}

// newRun lays the inputs out amid the surroundings' garbage, and the outputs in
// its poison.
func (c *Case) newRun(in inputs, around surroundings) *run {
	p := c.Problem
	r := &run{around: around}
	input := func(name string, l Layout, heads, seq int, values []float64) *Tensor {
		t := newTensor(name, l, p.DType, p.Batch, heads, seq, p.HeadDim)
		t.Scatter(values)
		t.fillGarbage(around.garbage)
		return t
	}
	r.q = input("q", c.Q, p.NumHeads, p.SeqQ, in.q)
	r.k = input("k", c.K, p.NumKVHeads, p.SeqKV, in.k)
	r.v = input("v", c.V, p.NumKVHeads, p.SeqKV, in.v)
	r.o = newTensor("O", c.O, p.DType, p.Batch, p.NumHeads, p.SeqQ, p.HeadDim)
	fill(r.o.Data, around.poison)
	if !c.NoLSE {
		r.lse = newTensor("LSE", c.LSE, dtype.Float32, p.Batch, p.NumHeads, p.SeqQ)
		fill(r.lse.Data, around.poison)
	}
	return r
}

func newTensor(name string, l Layout, dt dtype.DType, shape ...int) *Tensor {
	place := l.place
	if len(shape) == 3 {
		place = l.placeLSE
	}
	t := &Tensor{Name: name, DType: dt, Shape: shape}
	var n int
	t.Offset, t.Strides, n = place(shape)
	t.Data = make([]float64, n)
	return t
}

func fill(data []float64, x float64) {
	for i := range data {
		data[i] = x
	}
}

// call runs got on r and makes the checks that need no expectation, in this
// order: no error; inputs unchanged; canaries of the outputs intact.
func (r *run) call(c *Case, got Forwarder) error {
	before := [][]float64{slices.Clone(r.q.Data), slices.Clone(r.k.Data), slices.Clone(r.v.Data)}
	if err := got.Forward(r.o, r.lse, r.q, r.k, r.v, c.Problem); err != nil {
		return err
	}
	for i, t := range []*Tensor{r.q, r.k, r.v} {
		if err := checkUnchanged(t, before[i]); err != nil {
			return err
		}
	}
	for _, t := range []*Tensor{r.o, r.lse} {
		if t == nil {
			continue
		}
		if err := checkCanaries(t, r.around.poison); err != nil {
			return err
		}
	}
	return nil
}

// checkUnchanged compares all of an input's memory with what it was.
func checkUnchanged(t *Tensor, before []float64) error {
	for i, x := range t.Data {
		if !same(x, before[i]) {
			return fmt.Errorf("input %s was changed: backing element %d is %g, was %g", t.Name, i, x, before[i])
		}
	}
	return nil
}

// checkCanaries reports a write to memory that is not an element of t.
func checkCanaries(t *Tensor, canary float64) error {
	around := *t
	around.Data = slices.Clone(t.Data)
	elements := make([]float64, t.NumElements())
	fill(elements, canary)
	around.Scatter(elements)
	for i, x := range around.Data {
		if !same(x, canary) {
			return fmt.Errorf("%s was written outside its elements: backing element %d, %s, is %g", t.Name, i, t.where(i), x)
		}
	}
	return nil
}

// checkValues compares an output that was full of NaN, in logical order, with
// what is wanted: no NaN left, infinities equal, and the worst error within the
// bound.
func checkValues(t *Tensor, want []float64, bound float64) (ref.Diff, error) {
	got := t.Gather()
	for i, x := range got {
		if math.IsNaN(x) && !math.IsNaN(want[i]) {
			return ref.Diff{}, fmt.Errorf("%s[%d] = NaN, want %g at %s: not written, or computed from NaN", t.Name, i, want[i], t.index(i))
		}
	}
	for i, x := range got {
		if (math.IsInf(x, 0) || math.IsInf(want[i], 0)) && x != want[i] {
			return ref.Diff{}, fmt.Errorf("%s[%d] = %g, want %g at %s", t.Name, i, x, want[i], t.index(i))
		}
	}
	d := ref.MaxDiff(got, want)
	if d.Off > bound || math.IsNaN(bound) {
		return d, fmt.Errorf("%s[%d] = %.9g, want %.9g: off by %.3g, tolerance %.2g at %s", t.Name, d.Index, d.Got, d.Want, d.Off, bound, t.index(d.Index))
	}
	return d, nil
}

// checkEmptyRows wants exactly 0 in the rows of O that see no key, whatever
// the tolerance.
func checkEmptyRows(o *Tensor, c *Case) error {
	p := c.Problem
	for i, x := range o.Gather() {
		if lo, hi := p.Mask().Keys(i / p.HeadDim % p.SeqQ); x != 0 && lo == hi {
			return fmt.Errorf("O[%d] = %g, want 0 at %s: the row sees no key", i, x, o.index(i))
		}
	}
	return nil
}

// checkEqual wants the bits of two runs to be the same.
func checkEqual(first, second *Tensor, around surroundings) error {
	a, b := first.Gather(), second.Gather()
	for i := range a {
		if !same(a[i], b[i]) || math.Signbit(a[i]) != math.Signbit(b[i]) {
			return fmt.Errorf("%s[%d] = %g in the first run, %g in a second at %s: "+
				"not deterministic, or it depends on memory that is not an input (which held %s, then %s)",
				first.Name, i, a[i], b[i], first.index(i), nanAround.name, around.name)
		}
	}
	return nil
}
