package bench

import (
	"fmt"
	"math"
)

// Expectations are the right outputs.
type Expectations []Expected

// An Expected is the reference of an output, or of a part of it with its own limit. Those of one
// output follow one another.
type Expected struct {
	Name  string
	At    []int     // the elements that Want has, row-major; nil: all
	Want  []float64 // may be infinite
	Limit float64   // the largest |got - want| that is right
	// Limits has a limit for each element of Want, or of the last axis, instead of Limit.
	Limits []float64
	// Of every Stride elements, only the first Columns are of the output. The others may be
	// anything. 0: all are of the output.
	Columns, Stride int
}

// gap reports whether an element is between rows of the output.
func (e *Expected) gap(i int) bool { return e.Stride > 0 && i%e.Stride >= e.Columns }

// elements returns how many of n elements are of the output.
func (e *Expected) elements(n int) int {
	if e.Stride > 0 {
		return n / e.Stride * e.Columns
	}
	return n
}

// Check compares outputs by name; missing ones are left out. They must also be near, unless that is nil.
// An error is about the first output that
// is wrong. The Check has the output that is worst relative to its limit; lse is beside it.
func (list Expectations) Check(got map[string][]float32, near *Tolerance) (c Check, wrong error) {
	for i := range list {
		e := &list[i]
		x, ok := got[e.Name]
		if !ok {
			continue
		}
		one, err := e.compare(x, near)
		if wrong == nil {
			wrong = err
		}
		if i == 0 || list[i-1].Name != e.Name {
			one.OfRows = e.elements(len(x))
		}
		if e.Name == "lse" {
			one.LSEMaxAbs, one.LSELimit, one.MaxAbs, one.MeanAbs = one.MaxAbs, one.Limit, 0, 0
		}
		c = c.and(one)
	}
	return c, wrong
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

// compare compares one output. Elements that At lacks must be numbers: outputs were filled with
// NaN, so an element that was not written shows.
func (e *Expected) compare(got []float32, near *Tolerance) (Check, error) {
	c := Check{Limit: e.Limit, Rows: len(e.Want), Counted: "elements"}
	worst, share, sum := -1, 0.0, 0.0
	for i, want := range e.Want {
		x, limit := float64(got[e.at(i)]), e.Limit
		if e.Limits != nil {
			limit = e.Limits[i%len(e.Limits)]
		}
		if near != nil && !math.IsInf(want, 0) {
			limit = min(limit, near.Abs+near.Rel*math.Abs(want))
		}
		off, part := math.Abs(x-want), 0.0
		if x == want {
			off = 0 // Inf - Inf is NaN
		}
		if math.IsNaN(off) {
			off = math.Inf(1)
		}
		if off > 0 {
			part = off / limit
		}
		if part > share || worst < 0 {
			worst, share, c.MaxAbs, c.Limit = i, part, off, limit
		}
		sum += off
	}
	c.MeanAbs = sum / float64(len(e.Want))
	if c.MaxAbs > c.Limit {
		at := e.at(worst)
		err := fmt.Errorf("%s[%d] is %.6g, want %.6g: off by %.3g, limit %.3g", e.Name, at, got[at], e.Want[worst], c.MaxAbs, c.Limit)
		if near != nil {
			err = fmt.Errorf("%w, also %v", err, near)
		}
		return c, err
	}
	if e.At != nil {
		for i, x := range got {
			if math.IsNaN(float64(x)) && !e.gap(i) {
				return c, fmt.Errorf("%s[%d] was not written or is NaN", e.Name, i)
			}
		}
	}
	return c, nil
}

// at returns which element of the output Want[i] is.
func (e *Expected) at(i int) int {
	if e.At != nil {
		return e.At[i]
	}
	return i
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
