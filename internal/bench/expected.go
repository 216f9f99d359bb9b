package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/flashvk/flashvk/internal/call"
)

// CheckOutputs compares what outputs hold with what they should, by name; missing ones are left out. They must also
// be near, unless that is nil. An error is about the first output that is wrong. The Check has the output
// that is worst relative to its limit; lse is beside it.
func CheckOutputs(tensors []call.Tensor, want call.Outputs, got map[string][]float32, near *Tolerance) (c Check, wrong error) {
	for i := range tensors {
		t := &tensors[i]
		w, ok := want[t.Name]
		x, written := got[t.Name]
		if !ok || !written {
			continue
		}
		one, err := compare(t.Name, w, within(t, x), near)
		if t.Name == "lse" {
			one.LSEMaxAbs, one.LSELimit, one.MaxAbs, one.MeanAbs = one.MaxAbs, one.Limit, 0, 0
		}
		c, wrong = c.and(one), cmp.Or(wrong, err)
	}
	return c, wrong
}

// within returns the elements of rows that count. What lies between rows may be anything.
func within(t *call.Tensor, x []float32) (y []float32) {
	last := len(t.Shape) - 1
	if t.Part == nil || t.Part[last] == t.Shape[last] {
		return x
	}
	for row := range slices.Chunk(x, t.Shape[last]) {
		y = append(y, row[:t.Part[last]]...)
	}
	return y
}

// and returns both checks as one, with the worse of them relative to its limit.
func (c Check) and(x Check) Check {
	all := c
	if c.Counted == "" || x.MaxAbs > 0 && !(x.MaxAbs/x.Limit <= c.MaxAbs/c.Limit) {
		all = x
	}
	all.Rows, all.OfRows = c.Rows+x.Rows, c.OfRows+x.OfRows
	all.LSEMaxAbs, all.LSELimit = max(c.LSEMaxAbs, x.LSEMaxAbs), max(c.LSELimit, x.LSELimit)
	return all
}

// compare compares one output. Elements that are not in a sample, and those that may be anything, must be numbers:
// outputs were filled with NaN, so an element that was not written shows.
func compare(name string, w call.Wanted, got []float32, near *Tolerance) (Check, error) {
	if w.Any {
		w = call.Wanted{Sample: []int{}}
	}
	c := Check{Limit: w.Bound, Rows: len(w.Want), OfRows: len(got), Counted: "elements"}
	worst, share, sum := 0, -1.0, 0.0
	for i, want := range w.Want {
		at, limit := i, w.Bound
		if w.Sample != nil {
			at = w.Sample[i]
		}
		if w.Bounds != nil {
			limit = w.Bounds[i%len(w.Bounds)]
		}
		if near != nil && !math.IsInf(want, 0) {
			limit = min(limit, near.Abs+near.Rel*math.Abs(want))
		}
		off, part := math.Abs(float64(got[at])-want), 0.0
		if float64(got[at]) == want {
			off = 0 // Inf - Inf is NaN
		}
		if math.IsNaN(off) {
			off = math.Inf(1)
		}
		if off > 0 {
			part = off / limit
		}
		if part > share {
			worst, share, c.MaxAbs, c.Limit = i, part, off, limit
		}
		sum += off
	}
	c.MeanAbs = sum / float64(max(len(w.Want), 1))
	if c.MaxAbs > c.Limit {
		at := worst
		if w.Sample != nil {
			at = w.Sample[worst]
		}
		err := fmt.Errorf("%s[%d] is %.6g, want %.6g: off by %.3g, limit %.3g", name, at, got[at], w.Want[worst], c.MaxAbs, c.Limit)
		if near != nil {
			err = fmt.Errorf("%w, also %v", err, near)
		}
		return c, err
	}
	for i, x := range got {
		if w.Sample != nil && math.IsNaN(float64(x)) {
			return c, fmt.Errorf("%s[%d] was not written or is NaN", name, i)
		}
	}
	return c, nil
}

// A Tolerance is as in torch.allclose and numpy.allclose: an output is close where
//
//	|got - want| <= Abs + Rel * |want|
//
// Equal infinities are close. NaN is close to nothing. It holds in addition to the limits that follow
// from the format: a wrong output stays wrong.
type Tolerance struct{ Abs, Rel float64 }

// String returns the rule in words.
func (t Tolerance) String() string { return fmt.Sprintf("atol %g + rtol %g * |want|", t.Abs, t.Rel) }
