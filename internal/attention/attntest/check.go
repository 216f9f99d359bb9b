package attntest

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/guard"
)

// A Report says how close an implementation came on one case.
type Report struct {
	O, LSE guard.Diff // the worst elements, by logical index
	Bound  ref.Bound  // how far each may be off
}

// String gives the errors beside their bounds.
func (r Report) String() string {
	return fmt.Sprintf("O off by %.3g of %.3g, LSE by %.3g of %.3g", r.O.Off, r.Bound.O, r.LSE.Off, r.Bound.LSE)
}

// run holds the tensors of one call.
type run struct {
	in     Inputs
	o, lse *guard.View // lse is nil if the case has none
}

// newRun lays the inputs out amid the surroundings' garbage, and the outputs in
// its poison.
func (c *Case) newRun(in ref.Inputs[float64], around *guard.Surroundings) *run {
	p := c.Problem
	r := &run{in: c.newInputs(in, around)}
	r.o = newTensor("O", c.O, p.DType, p.OShape()...)
	r.o.Fill(around.Poison(p.DType))
	if !c.NoLSE {
		r.lse = newTensor("LSE", c.LSE, dtype.Float32, p.LSEShape()...)
		r.lse.Fill(around.Poison(dtype.Float32))
	}
	return r
}

// input lays values out amid garbage; nil for nil.
func input(around *guard.Surroundings, name string, l Layout, format dtype.DType, shape []int, values []float64) *guard.View {
	if values == nil {
		return nil
	}
	t := newTensor(name, l, format, shape...)
	t.Fill(around.Garbage(format))
	t.Scatter(values)
	return t
}

// newInputs lays the inputs out amid garbage, also in keys that no row sees.
func (c *Case) newInputs(values ref.Inputs[float64], around *guard.Surroundings) Inputs {
	p := c.Problem
	input := func(name string, l Layout, format dtype.DType, shape []int, values []float64) *guard.View {
		return input(around, name, l, format, shape, values)
	}
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
	garbage := around.Garbage(p.DType)
	var k, v []float64 // only where something is hidden
	c.hidden(values, func(row int) {
		if k == nil {
			k, v = in.K.Gather(), in.V.Gather()
		}
		for e := range p.HeadDim {
			k[row*p.HeadDim+e] = garbage(e)
		}
		for e := range p.ValueHeadDim() {
			v[row*p.ValueHeadDim()+e] = garbage(e)
		}
	})
	if k != nil {
		in.K.Scatter(k)
		in.V.Scatter(v)
	}
	return in
}

// numbers returns f(x) for every element x, nil for nil.
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

func newTensor(name string, l Layout, dt dtype.DType, shape ...int) *guard.View {
	t := &guard.View{Name: name, DType: dt, Shape: shape, Axes: axes(name, len(shape))}
	var n int
	t.Offset, t.Strides, n = l.placeAny(shape, len(shape) == 3 && !isLSE(name))
	t.Data = make([]float64, n)
	return t
}

// axes returns a letter for each axis of a tensor: i counts rows, or keys in dk and dv, j
// keys. In packed ones i counts all rows.
func axes(name string, n int) string {
	switch {
	case name == "dbias":
		return "bhij"
	case name == "dsinks":
		return "h"
	case n == 4:
		return "bhid"
	case isLSE(name):
		return "bhi"[3-n:]
	case n == 3:
		return "ihd"
	}
	return ""
}

// isLSE reports whether a tensor has the shape of LSE, which only its name tells
// from that of packed rows.
func isLSE(name string) bool { return name == "LSE" || name == "lse" || name == "dlse" }

// call runs got on r, watched.
func (r *run) call(c *Case, got Forwarder) error {
	outputs := []*guard.View{c.results(r.o)}
	if r.lse != nil {
		outputs = append(outputs, c.results(r.lse))
	}
	return guard.Watch(r.in.List(), outputs, func() error { return got.Forward(r.o, r.lse, r.in, c.Problem) })
}

// results returns an output without the rows that are in no sequence; no kernel may write these.
func (c *Case) results(t *guard.View) *guard.View {
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

// checkEmptyRows wants exactly 0 in the rows of O that see no key, whatever
// the tolerance.
func checkEmptyRows(o *guard.View, c *Case, in ref.Inputs[float64]) error {
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
				return fmt.Errorf("O[%d] = %g, want 0 at %s: the row sees no key", i, got[i], o.Index(i))
			}
		}
	}
	return nil
}
