package guard

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A Tensor is a tensor of a call.
type Tensor struct {
	Name   string
	DType  dtype.DType
	Shape  []int
	Values []float64 // row-major, exact in DType: the content of an input, or of an updated tensor before the call
	Want   []float64 // the right content of an output; nil: an input
	Bound  float64   // how far an output may be off
	Bounds []float64 // of each element of Want, instead of Bound
	// Sample lists the elements that Want and Bounds have; nil: all. The other elements must be
	// written, finite if there are Bounds, and the same in both runs.
	Sample []int
	// Part is the shape of what counts, from the first element on; nil: all. The call neither reads
	// nor writes the rest.
	Part []int
	// Hides says that the call does not read what is NaN among Values: garbage lies there.
	Hides bool
	// Scratch is memory that the call may change. It may change nothing beside it.
	Scratch bool
	Place   *Place // where the tensor lies; nil: packed, from the start of its memory
	// Memory names a buffer that the tensor shares with others of its format, one after the
	// other. With "" it has its own.
	Memory string
}

// A Place says how a tensor lies in memory, in elements.
type Place struct {
	Offset    int // before the first element
	RowGap    int // after each row
	MatrixGap int // after each matrix of three axes
	// Aligned makes the tensor and its rows begin at multiples of 8 elements, after Offset.
	// RowGap is ignored.
	Aligned bool
	// Strides holds one stride for each axis, instead of gaps. After is how much memory follows
	// the last element then.
	Strides []int
	After   int
	// Tight makes the memory end with the last element, if no tensor follows.
	Tight bool
}

// A Case is a call.
type Case struct {
	Name    string
	Tensors []Tensor
}

// A Record records the call on tensors, by name.
type Record func(c *vk.Cmd, t map[string]vk.Tensor) error

// Random returns normal numbers times a scale, rounded to a format.
func Random(rng *rand.Rand, t dtype.DType, n int, scale float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = float64(t.Round(float32(scale * rng.NormFloat64())))
	}
	return x
}

// Check runs the case. It returns the first thing that is wrong, and in words how close the
// outputs came.
func (c *Case) Check(d *vk.Device, record Record) (report string, err error) {
	r, err := c.CheckContext(context.Background(), Device{Device: d}, record)
	return r.Text, err
}

// A Report says how close outputs came.
type Report struct {
	Text  string
	Worst float64 // the largest error by its bound
}

// CheckContext is Check on a Device, and ends with a context.
func (c *Case) CheckContext(ctx context.Context, d Device, record Record) (report Report, err error) {
	first, err := c.run(ctx, d, record, &NotFinite)
	if err != nil {
		return report, err
	}
	if report, err = c.compare(first); err != nil {
		return report, err
	}
	second, err := c.run(ctx, d, record, &Finite)
	if err != nil {
		return report, fmt.Errorf("second run: %w", err)
	}
	for i := range c.Tensors {
		if c.Tensors[i].Want == nil {
			continue
		}
		if err := Equal(first[i], second[i]); err != nil {
			return report, err
		}
	}
	return report, nil
}

// reported is how many outputs a report lists. If there are more it has the one that came closest
// to its bound.
const reported = 16

// compare compares the outputs with Want.
func (c *Case) compare(views []*View) (r Report, err error) {
	closest, n := "", 0
	for i := range c.Tensors {
		t := &c.Tensors[i]
		if t.Want == nil {
			continue
		}
		off, bound, err := views[i].compareTensor(t)
		if err != nil {
			return r, err
		}
		text := fmt.Sprintf("%s off by %.3g of %.3g; ", t.Name, off, bound)
		if n++; n <= reported {
			r.Text += text
		}
		if share := off / math.Max(bound, math.SmallestNonzeroFloat64); closest == "" || share > r.Worst {
			closest, r.Worst = text, share
		}
	}
	if n > reported {
		r.Text = fmt.Sprintf("%d outputs; the closest to its bound: %s", n, closest)
	}
	return r, nil
}

// run runs the call once and makes the checks that need no Want. It returns the tensors after the
// call.
func (c *Case) run(ctx context.Context, d Device, record Record, around *Surroundings) ([]*View, error) {
	views := c.place(around)
	err := watch(views, func(i int) bool { return c.Tensors[i].Want != nil || c.Tensors[i].Scratch }, func() error {
		return d.Call(ctx, c.Name, views, func(cmd *vk.Cmd, on Views) error {
			t := make(map[string]vk.Tensor, len(views))
			for i, v := range views {
				x := on[v]
				x.Shape = c.Tensors[i].Shape
				t[v.Name] = x
			}
			return record(cmd, t)
		})
	})
	return views, err
}

// guard is the number of elements before and after a tensor.
const guard = 64

// place lays the tensors out amid garbage or poison.
func (c *Case) place(around *Surroundings) []*View {
	views := make([]*View, len(c.Tensors))
	ends := map[string]int{} // of memories that are shared
	for i := range c.Tensors {
		t := &c.Tensors[i]
		v, end := t.view(ends[t.Memory])
		views[i] = v
		if t.Memory != "" {
			ends[t.Memory] = end
			continue
		}
		v.Data = t.fill(end, around)
	}
	shared := map[string][]float64{}
	for i, v := range views {
		t := &c.Tensors[i]
		if name := t.Memory; name != "" {
			if shared[name] == nil {
				shared[name] = t.fill(ends[name], around)
			}
			v.Data = shared[name]
		}
		if t.Values != nil {
			v.Scatter(t.visible(v))
		}
	}
	return views
}

// fill returns n elements of the memory of a tensor.
func (t *Tensor) fill(n int, around *Surroundings) []float64 {
	f := around.Garbage(t.DType)
	if t.Want != nil {
		f = around.Poison(t.DType)
	}
	data := make([]float64, n)
	for i := range data {
		data[i] = f(i)
	}
	return data
}

// view returns the tensor without its memory. It lies behind the first begin elements of the
// memory, and ends at end.
func (t *Tensor) view(begin int) (v *View, end int) {
	place := Place{}
	if t.Place != nil {
		place = *t.Place
	}
	last := len(t.Shape) - 1
	if place.Aligned {
		begin, place.RowGap = (begin+7)/8*8, (8-t.Shape[last]%8)%8
	}
	v = &View{Name: t.Name, DType: t.DType, Shape: t.Shape, Strides: make([]int, len(t.Shape)), Offset: begin + place.Offset}
	stride := 1
	for a := last; a >= 0; a-- {
		v.Strides[a] = stride
		stride *= t.Shape[a]
		switch {
		case a == last && last > 0:
			stride += place.RowGap
		case a == last-1 && a > 0:
			stride += place.MatrixGap
		}
	}
	if place.Strides != nil {
		v.Strides = place.Strides
	}
	if t.Part != nil {
		v.Shape = t.Part
	}
	if !place.Tight && place.Strides == nil {
		return v, v.Offset + stride + guard
	}
	end = v.Offset
	for a, n := range t.Shape {
		end += (n - 1) * v.Strides[a]
	}
	return v, end + 1 + place.After
}

// visible returns the values of the part that counts, with what lies in v instead of hidden ones.
func (t *Tensor) visible(v *View) []float64 {
	values := t.part(t.Values)
	if !t.Hides {
		return values
	}
	values = slices.Clone(values)
	for i, garbage := range v.Gather() {
		if math.IsNaN(values[i]) {
			values[i] = garbage
		}
	}
	return values
}

// part returns the elements of the whole tensor that count.
func (t *Tensor) part(x []float64) []float64 {
	if t.Part == nil || x == nil {
		return x
	}
	return t.whole(x).Gather()
}

// whole returns a view of the part that counts in row-major elements of the whole tensor.
func (t *Tensor) whole(x []float64) *View {
	v := &View{Data: x, Shape: t.Part, Strides: make([]int, len(t.Shape))}
	stride := 1
	for a := len(t.Shape) - 1; a >= 0; a-- {
		v.Strides[a] = stride
		stride *= t.Shape[a]
	}
	if t.Part == nil {
		v.Shape = t.Shape
	}
	return v
}

// Outputs runs the case once, without comparing anything with Want, and returns what its outputs
// hold: 0 where nothing counts.
func (c *Case) Outputs(ctx context.Context, d Device, record Record) (map[string][]float64, error) {
	views, err := c.run(ctx, d, record, &Finite)
	out := map[string][]float64{}
	for i, v := range views {
		t := &c.Tensors[i]
		if t.Want == nil || err != nil {
			continue
		}
		got := v.Gather()
		if n := slices.IndexFunc(got, math.IsNaN); n >= 0 {
			return nil, v.unwritten(n, got[n])
		}
		out[t.Name] = make([]float64, (&View{Shape: t.Shape}).NumElements())
		t.whole(out[t.Name]).Scatter(got)
	}
	return out, err
}

// A T is a *testing.T. The package does not import testing, since the program links it.
type T interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Log(args ...any)
}

// Test fails t with what Check finds wrong, and logs how close the outputs came.
func (c *Case) Test(t T, d *vk.Device, record Record) {
	t.Helper()
	report, err := c.Check(d, record)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(report)
}
