package gemmtest

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/flashvk/flashvk/attention/attntest"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/pipelines/gemm/ref"
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

// Test runs the cases as subtests.
func Test(t *testing.T, cases []*Case, got Multiplier) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.String(), func(t *testing.T) {
			off, bound, err := Check(c, got)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("off by %.3g of %.3g", off, bound)
		})
	}
}

// surroundings are what memory holds that is not a tensor's: around inputs, and in and
// around outputs.
type surroundings struct{ garbage, poison float64 }

// Check runs a case twice and returns the worst error of C with its bound, or what is
// wrong.
func Check(c *Case, got Multiplier) (off, bound float64, err error) {
	in := newInputs(c.Problem)
	if c.Layout.Broadcast {
		for i := range in.A {
			in.A[i] = in.A[i%(c.M*c.K)]
		}
	}
	want, plain := ref.Multiply(in, c.Problem), ref.Plain(in, c.Problem)
	var first ref.Outputs
	for i, around := range []surroundings{{math.NaN(), math.NaN()}, {28672, -12288}} {
		out, err := run(c, in, around, got)
		if err != nil {
			return 0, 0, err
		}
		if i == 1 {
			if !slices.Equal(out.C, first.C) || !slices.Equal(out.X, first.X) || !slices.Equal(out.S, first.S) {
				return 0, 0, fmt.Errorf("a second run gave other bits: not deterministic, or it depends on memory that is not an input")
			}
			break
		}
		first = out
		bounds := ref.NewBounds(want, plain, in, c.Problem)
		bound = bounds.C
		if off, err = compare("C", out.C, want.C, bound, c.N); err != nil {
			return 0, 0, err
		}
		if _, err = compare("X", out.X, want.X, bounds.X, c.N); err != nil {
			return 0, 0, err
		}
		if _, err = compare("S", out.S, want.S, bounds.S, c.N); err != nil {
			return 0, 0, err
		}
	}
	return off, bound, nil
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

// newInputs returns random inputs that the formats of p can hold.
func newInputs(p problem.Problem) ref.Inputs {
	rng := rand.New(rand.NewPCG(uint64(p.M), uint64(p.N*1000+p.K)))
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

// run computes a case amid garbage and returns what it wrote.
func run(c *Case, in ref.Inputs, around surroundings, got Multiplier) (out ref.Outputs, err error) {
	p := c.Problem
	var inputs, outputs []*Tensor
	place := func(list *[]*Tensor, name string, format dtype.DType, shape []int, values []float64, fill float64) *Tensor {
		t := c.Layout.place(name, format, shape)
		for i := range t.Data {
			t.Data[i] = fill
		}
		if values != nil {
			t.Scatter(values)
		}
		*list = append(*list, t)
		return t
	}
	t := Tensors{
		A: place(&inputs, "a", p.DType, p.AShape(), in.A, around.garbage),
		B: place(&inputs, "b", p.DType, p.BShape(), in.B, around.garbage),
		C: place(&outputs, "c", p.Out, p.CShape(), in.C, around.poison),
	}
	if p.Residual {
		t.R = place(&inputs, "residual", p.Out, p.CShape(), in.R, around.garbage)
	}
	if p.ReadsX() {
		t.X = place(&inputs, "x", p.Out, p.CShape(), in.X, around.garbage)
	} else if p.HasX() {
		t.X = place(&outputs, "x", p.Out, p.CShape(), nil, around.poison)
	}
	if p.HasS() {
		t.S = place(&outputs, "s", p.Out, p.CShape(), nil, around.poison)
	}
	before := make([][]float64, len(inputs))
	for i, t := range inputs {
		before[i] = slices.Clone(t.Data)
	}
	if err := got.Multiply(t, p); err != nil {
		return out, err
	}
	for i, t := range inputs {
		for j, v := range t.Data {
			if !same(v, before[i][j]) {
				return out, fmt.Errorf("input %s was changed: backing element %d is %g, was %g", t.Name, j, v, before[i][j])
			}
		}
	}
	for _, t := range outputs {
		if err := checkAround(t, around.poison); err != nil {
			return out, err
		}
	}
	out.C = t.C.Gather()
	if p.Activation == problem.SiLUKeep {
		out.X = t.X.Gather()
	}
	if p.HasS() {
		out.S = t.S.Gather()
	}
	return out, nil
}

// checkAround reports a write to memory that is not an element of t.
func checkAround(t *Tensor, poison float64) error {
	rest := *t
	rest.Data = slices.Clone(t.Data)
	elements := t.Gather()
	for i := range elements {
		elements[i] = poison
	}
	rest.Scatter(elements)
	for i, v := range rest.Data {
		if !same(v, poison) {
			return fmt.Errorf("%s was written outside its elements: backing element %d is %g", t.Name, i, v)
		}
	}
	return nil
}

func same(a, b float64) bool { return a == b || a != a && b != b }

// place returns a tensor with memory for the layout.
func (l Layout) place(name string, format dtype.DType, shape []int) *Tensor {
	stride := shape[2] + l.Pad
	if l.Pad == padded {
		stride = (shape[2] + 7) / 8 * 8
	}
	t := &Tensor{Name: name, DType: format, Offset: l.Offset, Shape: slices.Clone(shape), Strides: []int{shape[1]*stride + l.BatchPad, stride, 1}}
	if l.Broadcast && name == "a" {
		t.Strides[0] = 0
	}
	last := l.Offset
	for i, n := range shape {
		last += (n - 1) * t.Strides[i]
	}
	t.Data = make([]float64, last+1+l.Offset)
	return t
}
