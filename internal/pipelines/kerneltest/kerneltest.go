// Package kerneltest is the suite of the kernels of pipelines: it runs a call on a
// device on tensors whose surroundings it watches.
//
// A Case has the tensors of a call and what its outputs should be. Check lays each out
// as a strided view of a larger buffer, with other strides than its neighbours' so that
// a kernel that takes one's for the other's is found out,
//
//	         offset                row stride
//	       ┌────────┬─────────┬──┬─────────┬──┬─────────┬───────────┐
//	input  │ NaN,Inf│ row 0   │≈≈│ row 1   │≈≈│ row 2   │ NaN, Inf  │   run 1
//	       │ ±28672 │ row 0   │≈≈│ row 1   │≈≈│ row 2   │ ±28672    │   run 2
//	       ├────────┼─────────┼──┼─────────┼──┼─────────┼───────────┤
//	output │ NaN    │ NaN     │≈≈│ NaN     │≈≈│ NaN     │ NaN       │   before run 1
//	       │ -12288 │ -12288  │≈≈│ -12288  │≈≈│ -12288  │ -12288    │   before run 2
//	       └────────┴─────────┴──┴─────────┴──┴─────────┴───────────┘
//
// and checks, in this order: inputs unchanged; nothing written beside the elements of
// outputs; every element written; infinities and NaN where they are wanted; the worst error
// within its bound; a second run, with other values in all memory that is not an
// input, equal bit by bit.
package kerneltest

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/vk"
)

// A Tensor is a tensor of a call.
type Tensor struct {
	Name   string
	DType  dtype.DType
	Shape  []int
	Values []float64 // row-major, exact in DType: what an input holds, or what an updated tensor holds before
	Want   []float64 // what an output should hold; nil: an input
	Bound  float64   // how far an output may be off
	Bounds []float64 // of each element of Want, instead of Bound
	// Sample lists the elements that Want has, in row-major order; nil: all. The others
	// have to be written, and the same in both runs.
	Sample []int
	// Scratch is memory that the call may do what it likes with, but not beside it.
	Scratch bool
	// Place says where the tensor lies whatever the layout of the case; nil: as that says.
	Place *Place
}

// A Place says how a tensor lies in memory, in elements.
type Place struct {
	Offset    int // before the first element
	RowGap    int // after each row
	MatrixGap int // after each matrix of three axes
}

// A Layout says how the rows of a Case's tensors lie.
type Layout uint8

// The layouts.
const (
	Packed  Layout = iota // contiguous, from offset 0 on
	Padded                // multiples of 8 elements between rows and before the first
	Odd                   // odd numbers
	Layouts               // how many there are
)

// A Case is a call.
type Case struct {
	Name    string
	Layout  Layout
	Tensors []Tensor
	// Flat names tensors that are contiguous whatever the layout, though they may
	// begin anywhere.
	Flat []string
}

// A Record records the call on tensors, by name.
type Record func(c *vk.Cmd, t map[string]vk.Tensor) error

// Random returns normal numbers times a scale, as a format has them.
func Random(rng *rand.Rand, t dtype.DType, n int, scale float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(t.Round(float32(scale * rng.NormFloat64())))
	}
	return x
}

// Test fails t with what Check finds wrong, and logs how close the outputs came.
func (c *Case) Test(t *testing.T, d *vk.Device, record Record) {
	t.Helper()
	report, err := c.Check(d, record)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
}

// TestWorkspace is Test with memory of so many bytes, full of NaN, and then with 4 bytes
// less, which it wants to be refused by the package of the case's name.
func (c *Case) TestWorkspace(t *testing.T, d *vk.Device, bytes int64, record func(workspace *vk.Buffer) Record) {
	t.Helper()
	for _, less := range []int64{0, 4} {
		workspace, err := d.NewBuffer("workspace", bytes-less)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Check(d, func(cmd *vk.Cmd, tensors map[string]vk.Tensor) error {
			cmd.Fill(workspace, 0, workspace.Bytes(), math.MaxUint32)
			return record(workspace)(cmd, tensors)
		})
		workspace.Close()
		want := fmt.Sprintf("%s: workspace has %d bytes, want %d", c.Name, bytes-less, bytes)
		switch {
		case less == 0 && err != nil:
			t.Fatal(err)
		case less > 0 && (err == nil || err.Error() != want):
			t.Fatalf("with less memory the error is %v, want %s", err, want)
		}
	}
}

// surroundings are what memory holds that is not an input.
type surroundings struct {
	garbage func(i int) float64
	poison  float64
	name    string
}

var (
	nanAround = surroundings{
		func(i int) float64 { return []float64{math.NaN(), math.Inf(1), math.NaN(), math.Inf(-1)}[i%4] }, math.NaN(), "NaN and Inf"}
	finiteAround = surroundings{func(i int) float64 { return 28672 * float64(1-i%2*2) }, -12288, "±28672"}
)

// Check runs the case and returns the first thing that is wrong, and how close the
// outputs came, in words.
func (c *Case) Check(d *vk.Device, record Record) (report string, err error) {
	return c.CheckContext(context.Background(), d, record)
}

// CheckContext is Check that ends with a context.
func (c *Case) CheckContext(ctx context.Context, d *vk.Device, record Record) (report string, err error) {
	first, err := c.run(ctx, d, record, nanAround)
	if err != nil {
		return "", err
	}
	for i := range c.Tensors {
		t := &c.Tensors[i]
		if t.Want == nil {
			continue
		}
		off, err := t.compare(first[i])
		if err != nil {
			return report, err
		}
		report += fmt.Sprintf("%s off by %.3g of %.3g; ", t.Name, off, t.Bound)
	}
	second, err := c.run(ctx, d, record, finiteAround)
	if err != nil {
		return report, fmt.Errorf("second run: %w", err)
	}
	for i := range c.Tensors {
		a, b := first[i], second[i]
		for j := range a {
			if math.Float64bits(a[j]) != math.Float64bits(b[j]) && !(math.IsNaN(a[j]) && math.IsNaN(b[j])) {
				return report, fmt.Errorf("%s[%d] = %g in the first run, %g in a second: not deterministic, or it depends on memory that is not an input (which held %s, then %s)",
					c.Tensors[i].Name, j, a[j], b[j], nanAround.name, finiteAround.name)
			}
		}
	}
	return report, nil
}

// compare returns the worst error of an output.
func (t *Tensor) compare(got []float64) (worst float64, err error) {
	if t.Sample != nil { // of the others it is known that they are numbers
		for i, x := range got {
			if math.IsNaN(x) {
				return worst, fmt.Errorf("%s[%d] = NaN: not written, or computed from NaN", t.Name, i)
			}
		}
		some := make([]float64, len(t.Sample))
		for i, at := range t.Sample {
			some[i] = got[at]
		}
		got = some
	}
	for i, want := range t.Want {
		off, bound := math.Abs(got[i]-want), t.Bound
		if t.Bounds != nil {
			bound = t.Bounds[i]
		}
		at := i
		if t.Sample != nil {
			at = t.Sample[i]
		}
		switch {
		case got[i] == want || math.IsNaN(got[i]) && math.IsNaN(want):
			continue
		case math.IsNaN(got[i]):
			return worst, fmt.Errorf("%s[%d] = NaN, want %g: not written, or computed from NaN", t.Name, at, want)
		case !(off <= bound): // infinite where only one is; NaN where NaN is wanted
			return worst, fmt.Errorf("%s[%d] = %.9g, want %.9g: off by %.3g, tolerance %.3g", t.Name, at, got[i], want, off, bound)
		}
		worst = max(worst, off)
	}
	return worst, nil
}

// run runs the call once and makes the checks that need no expectation. It returns
// the elements of the outputs, nil for the other tensors.
func (c *Case) run(ctx context.Context, d *vk.Device, record Record, around surroundings) ([][]float64, error) {
	tensors := make([]*attntest.Tensor, len(c.Tensors))
	before := make([][]byte, len(c.Tensors))
	views := map[string]vk.Tensor{}
	defer func() {
		for _, t := range views {
			t.Close()
		}
	}()
	for i := range c.Tensors {
		t := c.place(i, around)
		tensors[i], before[i] = t, t.Encode()
		b, err := d.NewBuffer(t.Name, int64(len(before[i])+3)&^3)
		if err != nil {
			return nil, err
		}
		views[t.Name] = vk.Tensor{Buffer: b, DType: t.DType, Shape: t.Shape, Strides: t.Strides, Offset: t.Offset}
		if err := b.Upload(ctx, 0, before[i]); err != nil {
			return nil, err
		}
	}
	cmd, err := d.NewCmd(c.Name)
	if err != nil {
		return nil, err
	}
	defer cmd.Close()
	if err := record(cmd, maps.Clone(views)); err != nil {
		return nil, err
	}
	if err := cmd.Submit(ctx); err != nil {
		return nil, err
	}
	outputs := make([][]float64, len(tensors))
	for i, t := range tensors {
		after := make([]byte, len(before[i]))
		if err := views[t.Name].Buffer.Download(ctx, 0, after); err != nil {
			return nil, err
		}
		if outputs[i], err = c.Tensors[i].checkMemory(t, before[i], after); err != nil {
			return nil, err
		}
	}
	return outputs, nil
}

// checkMemory compares what the call may not have changed with what it was, bit by bit: all
// of an input, and of an output what is beside its elements, which it returns.
func (t *Tensor) checkMemory(x *attntest.Tensor, before, after []byte) (elements []float64, err error) {
	if t.Want == nil && !t.Scratch {
		if !bytes.Equal(before, after) {
			return nil, t.changed(x, before, after, "input %s was changed")
		}
		return nil, nil
	}
	size := t.DType.Size()
	beside := bytes.Clone(after)
	n := size * t.Shape[len(t.Shape)-1]
	rows(x, func(at int) { // elements count as what they were
		copy(beside[size*at:][:n], before[size*at:][:n])
	})
	if !bytes.Equal(before, beside) {
		return nil, t.changed(x, before, beside, "%s was written outside its elements")
	}
	if t.Scratch {
		return nil, nil
	}
	x.Decode(after)
	return x.Gather(), nil
}

// changed says which element of a tensor's memory is another.
func (t *Tensor) changed(x *attntest.Tensor, before, after []byte, what string) error {
	size := t.DType.Size()
	at := 0
	for before[at] == after[at] {
		at++
	}
	at /= size
	x.Decode(before)
	was := x.Data[at]
	x.Decode(after)
	return fmt.Errorf(what+": backing element %d is %g, was %g", t.Name, at, x.Data[at], was)
}

// guard elements stand before and after a tensor.
const guard = 64

// place lays tensor i out amid garbage or poison.
func (c *Case) place(i int, around surroundings) *attntest.Tensor {
	t := &c.Tensors[i]
	x := &attntest.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Strides: make([]int, len(t.Shape))}
	gap, matrixGap := 0, 0
	switch {
	case t.Place != nil:
		x.Offset, gap, matrixGap = t.Place.Offset, t.Place.RowGap, t.Place.MatrixGap
	case c.Layout == Padded:
		x.Offset, gap = guard+8*i, 8*(i+1)
	case c.Layout == Odd:
		x.Offset, gap = guard+1+2*i, 2*i+3
	}
	if slices.Contains(c.Flat, t.Name) {
		gap = 0
	}
	stride := 1
	for a := len(t.Shape) - 1; a >= 0; a-- {
		x.Strides[a] = stride
		stride *= t.Shape[a]
		switch {
		case a == len(t.Shape)-1 && len(t.Shape) > 1:
			stride += gap
		case a == len(t.Shape)-2 && a > 0:
			stride += matrixGap
		}
	}
	x.Data = make([]float64, x.Offset+stride+guard)
	for j := range x.Data {
		if t.Want != nil {
			x.Data[j] = t.fit(around.poison)
		} else {
			x.Data[j] = t.fit(around.garbage(j))
		}
	}
	if t.Values != nil {
		x.Scatter(t.Values)
	}
	return x
}

// rows calls f with the position of each row of x.
func rows(x *attntest.Tensor, f func(at int)) {
	last := len(x.Shape) - 1
	var walk func(axis, at int)
	walk = func(axis, at int) {
		if axis == last {
			f(at)
			return
		}
		for i := range x.Shape[axis] {
			walk(axis+1, at+i*x.Strides[axis])
		}
	}
	walk(0, x.Offset)
}

// fit returns garbage that the format has.
func (t *Tensor) fit(x float64) float64 {
	if !t.DType.Float() && (math.IsNaN(x) || math.IsInf(x, 0)) {
		return -1
	}
	return x
}
