package attntest

import (
	"fmt"
	"math"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
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
	garbage func(i int) float64 // around and between the rows of the inputs, and in keys that no row sees
	length  float64             // the same for lengths
	visible float64             // the same for key masks
	poison  float64             // everywhere in O and LSE: elements not yet written, and canaries
	name    string
}

var notFinite = [...]float64{math.NaN(), math.Inf(1), math.NaN(), math.Inf(-1)}

var (
	// NaN reaches everything that is computed from it, but a comparison (max) may
	// drop it.
	nanAround = surroundings{
		garbage: func(i int) float64 { return notFinite[i%len(notFinite)] },
		length:  1 << 20,
		visible: 1,
		poison:  math.NaN(),
		name:    "NaN and Inf",
	}
	// Large finite values win a maximum. They, and the canary, are exact in
	// every dtype.
	finiteAround = surroundings{
		garbage: func(i int) float64 { return 28672 * float64(1-i%2*2) },
		length:  -3,
		visible: 0,
		poison:  -12288,
		name:    "±28672",
	}
)

// around returns the garbage of a format.
func (s *surroundings) around(format dtype.DType) func(i int) float64 {
	switch format {
	case dtype.Int32:
		return func(int) float64 { return s.length }
	case dtype.Bool:
		return func(int) float64 { return s.visible }
	}
	return s.garbage
}

// run holds the tensors of one call.
type run struct {
	in     Inputs
	o, lse *Tensor // lse is nil if the case has none
	around surroundings
}

// newRun lays the inputs out amid the surroundings' garbage, and the outputs in
// its poison.
func (c *Case) newRun(in ref.Inputs[float64], around surroundings) *run {
	p := c.Problem
	r := &run{in: c.newInputs(in, around), around: around}
	r.o = newTensor("O", c.O, p.DType, p.OShape()...)
	fill(r.o.Data, around.poison)
	if !c.NoLSE {
		r.lse = newTensor("LSE", c.LSE, dtype.Float32, p.LSEShape()...)
		fill(r.lse.Data, around.poison)
	}
	return r
}

// input lays values out amid garbage; nil for nil.
func (s *surroundings) input(name string, l Layout, format dtype.DType, shape []int, values []float64) *Tensor {
	if values == nil {
		return nil
	}
	t := newTensor(name, l, format, shape...)
	garbage := s.around(format)
	for i := range t.Data {
		t.Data[i] = garbage(i)
	}
	t.Scatter(values)
	return t
}

// newInputs lays the inputs out amid garbage, also in keys that no row sees.
func (c *Case) newInputs(values ref.Inputs[float64], around surroundings) Inputs {
	p, input := c.Problem, around.input
	in := Inputs{
		Q:           input("q", c.Q, p.DType, p.QShape(), values.Q),
		K:           input("k", c.K, p.DType, p.KShape(), values.K),
		V:           input("v", c.V, p.DType, p.VShape(), values.V),
		Bias:        input("bias", c.Features, p.Bias.DType, p.BiasShape(), values.Bias),
		ALiBiSlopes: input("alibi_slopes", c.Features, dtype.Float32, p.SlopesShape(), values.ALiBiSlopes),
		Sinks:       input("sinks", c.Features, dtype.Float32, p.SinksShape(), values.Sinks),
		KeyMask:     input("key_mask", c.Features, dtype.Bool, p.KeyMaskShape(), numbers(values.KeyMask, func(visible bool) float64 { return map[bool]float64{true: 1}[visible] })),
		CuSeqlensQ:  input("cu_seqlens_q", c.Features, dtype.Int32, p.CuSeqlensShape(), numbers(values.CuSeqlensQ, func(n int32) float64 { return float64(n) })),
		CuSeqlensKV: input("cu_seqlens_kv", c.Features, dtype.Int32, p.CuSeqlensShape(), numbers(values.CuSeqlensKV, func(n int32) float64 { return float64(n) })),
	}
	var k, v []float64 // only where something is hidden
	c.hidden(values, func(row int) {
		if k == nil {
			k, v = in.K.Gather(), in.V.Gather()
		}
		for e := range p.HeadDim {
			k[row*p.HeadDim+e] = around.garbage(e)
		}
		for e := range p.ValueHeadDim() {
			v[row*p.ValueHeadDim()+e] = around.garbage(e)
		}
	})
	if k != nil {
		in.K.Scatter(k)
		in.V.Scatter(v)
	}
	return in
}

// numbers returns f of every element, nil for nil.
func numbers[T any](x []T, f func(T) float64) []float64 {
	if x == nil {
		return nil
	}
	y := make([]float64, len(x))
	for i := range x {
		y[i] = f(x[i])
	}
	return y
}

func newTensor(name string, l Layout, dt dtype.DType, shape ...int) *Tensor {
	t := &Tensor{Name: name, DType: dt, Shape: shape}
	var n int
	t.Offset, t.Strides, n = l.placeAny(shape, len(shape) == 3 && !isLSE(name))
	t.Data = make([]float64, n)
	return t
}

func fill(data []float64, x float64) {
	for i := range data {
		data[i] = x
	}
}

// isLSE reports whether a tensor has the shape of LSE, which only its name tells
// from that of packed rows.
func isLSE(name string) bool { return name == "LSE" || name == "lse" || name == "dlse" }

// call runs got on r and makes the checks that need no expectation, in this
// order: no error; inputs unchanged; canaries of the outputs intact.
func (r *run) call(c *Case, got Forwarder) error {
	outputs := []*Tensor{r.o}
	if r.lse != nil {
		outputs = append(outputs, r.lse)
	}
	return r.around.call(c, r.in.list(), outputs, func() error { return got.Forward(r.o, r.lse, r.in, c.Problem) })
}

// call runs f, which may change nothing but the elements of the outputs, and makes
// these checks.
func (s *surroundings) call(c *Case, inputs, outputs []*Tensor, f func() error) error {
	before := make([][]float64, len(inputs))
	for i, t := range inputs {
		before[i] = slices.Clone(t.Data)
	}
	if err := f(); err != nil {
		return err
	}
	for i, t := range inputs {
		if err := checkUnchanged(t, before[i]); err != nil {
			return err
		}
	}
	for _, t := range outputs {
		if err := checkCanaries(c.results(t), s.poison); err != nil {
			return err
		}
	}
	return nil
}

// results returns an output without the rows that are in no sequence, which
// nobody may write.
func (c *Case) results(t *Tensor) *Tensor {
	if t == nil || !c.Problem.Varlen.On || t.Name == "dbias" || t.Name == "dsinks" {
		return t
	}
	part := *t
	part.Shape = slices.Clone(t.Shape)
	axis := 0
	if isLSE(t.Name) {
		axis = 1
	}
	part.Shape[axis] -= c.Slack
	return &part
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
func checkEmptyRows(o *Tensor, c *Case, in ref.Inputs[float64]) error {
	p, d := c.Problem, c.Problem.ValueHeadDim()
	got := o.Gather()
	for n := range in.NumRows(p) {
		r := in.Row(p, n)
		if !in.SeesNothing(p, r) {
			continue
		}
		at, _ := in.At(p, r)
		for i := at * d; i < (at+1)*d; i++ {
			if got[i] != 0 {
				return fmt.Errorf("O[%d] = %g, want 0 at %s: the row sees no key", i, got[i], o.index(i))
			}
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
