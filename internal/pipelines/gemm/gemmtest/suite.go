package gemmtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
)

// A Tensor is a strided view of a backing slice.
type Tensor = attntest.Tensor

// Tensors are those of a problem; R, X and S are nil for problems without them.
type Tensors struct{ C, A, B, R, X, S *Tensor }

// A Multiplier computes a problem. A device implementation uploads the whole backing
// slice of each tensor and downloads all afterwards, so that the suite sees stray
// writes.
type Multiplier interface {
	Multiply(t Tensors, p problem.Problem) error
}

// MultiplyFunc is a Multiplier that is one function.
type MultiplyFunc func(t Tensors, p problem.Problem) error

// Multiply calls f.
func (f MultiplyFunc) Multiply(t Tensors, p problem.Problem) error { return f(t, p) }

// A GroupMultiplier computes a group. Tensors of one name have one backing slice. Those
// of products without elements are nil, and where k is 0, A and B.
type GroupMultiplier func(t []Tensors, g problem.Group) error

// Test runs the cases as subtests.
func Test(t *testing.T, cases []*Case, got Multiplier) {
	t.Helper()
	for _, c := range cases {
		test(t, c.String(), func() (off, bound float64, err error) { return Check(c, got) })
	}
}

// TestGroup runs the cases of groups as subtests.
func TestGroup(t *testing.T, cases []*GroupCase, got GroupMultiplier) {
	t.Helper()
	for _, c := range cases {
		test(t, c.String(), func() (off, bound float64, err error) { return CheckGroup(c, got) })
	}
}

func test(t *testing.T, name string, check func() (off, bound float64, err error)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		off, bound, err := check()
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("off by %.3g of %.3g", off, bound)
	})
}

// Check runs a case twice and returns the worst error of C with its bound, or what is
// wrong.
func Check(c *Case, got Multiplier) (off, bound float64, err error) {
	x := call{[]problem.Problem{c.Problem}, c.Layout, newInputs, func(t []Tensors) error { return got.Multiply(t[0], c.Problem) }}
	return x.check()
}

// CheckGroup is Check for a group: the error and bound are those of the product that comes
// closest to its bound.
func CheckGroup(c *GroupCase, got GroupMultiplier) (off, bound float64, err error) {
	x := call{nil, c.Layout, newInputs, func(t []Tensors) error { return got(t, c.Group) }}
	if c.Inputs != nil {
		x.inputs = c.Inputs
	}
	for i := range c.Products {
		x.problems = append(x.problems, c.Problem(i))
	}
	return x.check()
}

// A call is what is checked.
type call struct {
	problems []problem.Problem
	layout   Layout
	inputs   func(p problem.Problem, i int) ref.Inputs
	multiply func(t []Tensors) error
}

// surroundings are what memory holds that is not a tensor's: around inputs, and in and
// around outputs.
type surroundings struct{ garbage, poison float64 }

// check runs the call twice.
func (c *call) check() (off, bound float64, err error) {
	in := make([]ref.Inputs, len(c.problems))
	for i, p := range c.problems {
		in[i] = c.inputs(p, i)
		if c.layout.Broadcast {
			for j := range in[i].A {
				in[i].A[j] = in[i].A[j%(p.M*p.K)]
			}
		}
	}
	first, err := c.run(in, surroundings{math.NaN(), math.NaN()})
	if err != nil {
		return 0, 0, err
	}
	for i, p := range c.problems {
		worst, limit, err := compareAll(first[i], in[i], p)
		if err != nil {
			return 0, 0, fmt.Errorf("product %d, %v: %w", i, p, err)
		}
		if bound == 0 || worst*bound > off*limit {
			off, bound = worst, limit
		}
	}
	second, err := c.run(in, surroundings{28672, -12288})
	if err != nil {
		return 0, 0, err
	}
	for i := range first {
		if a, b := first[i], second[i]; !slices.Equal(a.C, b.C) || !slices.Equal(a.X, b.X) || !slices.Equal(a.S, b.S) {
			return 0, 0, fmt.Errorf("a second run gave other bits: not deterministic, or it depends on memory that is not an input")
		}
	}
	return off, bound, nil
}

// compareAll returns the worst error of C and its bound, or an error if an output exceeds
// its bound.
func compareAll(got ref.Outputs, in ref.Inputs, p problem.Problem) (off, bound float64, err error) {
	want, plain := ref.Multiply(in, p), ref.Plain(in, p)
	bounds := ref.NewBounds(want, plain, in, p)
	if off, err = compare("C", got.C, want.C, bounds.C, p.N); err != nil {
		return 0, 0, err
	}
	if _, err = compare("X", got.X, want.X, bounds.X, p.N); err != nil {
		return 0, 0, err
	}
	_, err = compare("S", got.S, want.S, bounds.S, p.N)
	return off, bounds.C, err
}

// compare returns the worst error, or an error if it exceeds the bound.
func compare(name string, got, want []float64, bound float64, n int) (float64, error) {
	worst, at := 0.0, 0
	for i, w := range want {
		off := math.Abs(got[i] - w)
		if math.IsNaN(off) {
			return 0, fmt.Errorf("%s[%d,%d] = %g, want %g: not written, or computed from NaN", name, i/n, i%n, got[i], w)
		}
		if off > worst {
			worst, at = off, i
		}
	}
	if worst > bound {
		return 0, fmt.Errorf("%s[%d,%d] = %.9g, want %.9g: off by %.3g, tolerance %.2g", name, at/n, at%n, got[at], want[at], worst, bound)
	}
	return worst, nil
}

// newInputs returns random inputs of product i that the formats of p can hold.
func newInputs(p problem.Problem, i int) ref.Inputs {
	rng := rand.New(rand.NewPCG(uint64(p.M)+uint64(i)<<32, uint64(p.N*1000+p.K)))
	random := func(present bool, format dtype.DType, shape []int) []float64 {
		if !present {
			return nil
		}
		x := make([]float64, shape[0]*shape[1]*shape[2])
		for i := range x {
			x[i] = float64(format.Round(float32(rng.NormFloat64())))
		}
		return x
	}
	return ref.Inputs{
		A: random(true, p.DType, p.AShape()),
		B: random(true, p.DType, p.BShape()),
		C: random(p.Beta != 0, p.Out, p.CShape()),
		R: random(p.Residual, p.Out, p.CShape()),
		X: random(p.ReadsX(), p.Out, p.CShape()),
	}
}

// A memory has the tensors of one name, one after the other in one backing slice.
type memory struct {
	written bool
	tensors []*Tensor
	values  [][]float64 // of each tensor; nil: what fill is
	size    int
}

// add places a tensor after the others.
func (m *memory) add(l Layout, name string, format dtype.DType, shape []int, values []float64) *Tensor {
	t, end := l.place(name, format, shape, m.size)
	m.tensors, m.values, m.size = append(m.tensors, t), append(m.values, values), end
	return t
}

// fill makes the slice, and returns a copy.
func (m *memory) fill(around float64) (before []float64) {
	data := make([]float64, m.size)
	for i := range data {
		data[i] = around
	}
	for i, t := range m.tensors {
		if t.Data = data; m.values[i] != nil {
			t.Scatter(m.values[i])
		}
	}
	return slices.Clone(data)
}

// check reports a write to an input, or to memory that is not an element of an output.
func (m *memory) check(before []float64, poison float64) error {
	if len(m.tensors) == 0 {
		return nil
	}
	name, data := m.tensors[0].Name, m.tensors[0].Data
	if !m.written {
		for i, v := range data {
			if !same(v, before[i]) {
				return fmt.Errorf("input %s was changed: backing element %d is %g, was %g", name, i, v, before[i])
			}
		}
		return nil
	}
	rest := slices.Clone(data)
	for _, t := range m.tensors {
		elements := t.Gather()
		for i := range elements {
			elements[i] = poison
		}
		beside := *t
		beside.Data = rest
		beside.Scatter(elements)
	}
	for i, v := range rest {
		if !same(v, poison) {
			return fmt.Errorf("%s was written outside its elements: backing element %d is %g", name, i, v)
		}
	}
	return nil
}

// run computes the call amid garbage and returns what it wrote.
func (c *call) run(in []ref.Inputs, around surroundings) ([]ref.Outputs, error) {
	tensors := make([]Tensors, len(c.problems))
	var a, b, r, x, s memory
	out := memory{written: true}
	for i, p := range c.problems {
		t := &tensors[i]
		if p.M == 0 || p.N == 0 {
			continue
		}
		if p.K > 0 {
			t.A = a.add(c.layout, "a", p.DType, p.AShape(), in[i].A)
			t.B = b.add(c.layout, "b", p.DType, p.BShape(), in[i].B)
		}
		t.C = out.add(c.layout, "c", p.Out, p.CShape(), in[i].C)
		if p.Residual {
			t.R = r.add(c.layout, "residual", p.Out, p.CShape(), in[i].R)
		}
		if x.written = !p.ReadsX(); p.HasX() {
			t.X = x.add(c.layout, "x", p.Out, p.CShape(), in[i].X)
		}
		if s.written = true; p.HasS() {
			t.S = s.add(c.layout, "s", p.Out, p.CShape(), nil)
		}
	}
	memories := []*memory{&a, &b, &r, &x, &out, &s}
	before := make([][]float64, len(memories))
	for i, m := range memories {
		before[i] = m.fill(map[bool]float64{false: around.garbage, true: around.poison}[m.written])
	}
	if err := c.multiply(tensors); err != nil {
		return nil, err
	}
	for i, m := range memories {
		if err := m.check(before[i], around.poison); err != nil {
			return nil, err
		}
	}
	outputs := make([]ref.Outputs, len(tensors))
	for i, t := range tensors {
		if t.C != nil {
			outputs[i].C = t.C.Gather()
		}
		if t.X != nil && x.written {
			outputs[i].X = t.X.Gather()
		}
		if t.S != nil {
			outputs[i].S = t.S.Gather()
		}
	}
	return outputs, nil
}

func same(a, b float64) bool { return a == b || a != a && b != b }

// place returns a tensor that lies from element `at` of a slice on, and where its memory
// ends.
func (l Layout) place(name string, format dtype.DType, shape []int, at int) (t *Tensor, end int) {
	stride := shape[2] + l.Pad
	if l.Pad == padded {
		at, stride = (at+7)/8*8, (shape[2]+7)/8*8
	}
	t = &Tensor{Name: name, DType: format, Offset: at + l.Offset, Shape: slices.Clone(shape), Strides: []int{shape[1]*stride + l.BatchPad, stride, 1}}
	if l.Broadcast && name == "a" {
		t.Strides[0] = 0
	}
	last := t.Offset
	for i, n := range shape {
		last += (n - 1) * t.Strides[i]
	}
	return t, last + 1 + l.Offset
}
