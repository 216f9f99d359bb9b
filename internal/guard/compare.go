package guard

import (
	"fmt"
	"math"
	"slices"
)

// Off returns the largest |got - want| of two slices of the same length, +Inf where only one is NaN or
// infinite. Equal infinities agree. NaN agrees with nothing.
func Off(got, want []float64) (worst float64) {
	for i, w := range want {
		off := math.Abs(got[i] - w)
		if math.IsNaN(off) && got[i] != w { // Inf - Inf is NaN
			off = math.Inf(1)
		}
		if off > worst {
			worst = off
		}
	}
	return worst
}

// compareTensor compares an output that was full of poison with the values of t: no NaN where t has
// none, infinities equal, and the worst error within its bound. It returns error and bound.
func (v *View) compareTensor(t *Tensor) (off, bound float64, err error) {
	got, want, at, bounds := v.Gather(), t.Want, t.Sample, t.Bounds
	switch {
	case at == nil:
		want, bounds = t.part(want), t.part(bounds)
	case t.Part != nil:
		at = v.positions(t)
	}
	if bounds == nil {
		bounds = slices.Repeat([]float64{t.Bound}, len(want))
	}
	if at == nil {
		return v.compare(got, want, bounds, nil)
	}
	some, known := make([]float64, len(at)), map[int]bool{}
	for i, n := range at {
		some[i], known[n] = got[n], t.Bounds != nil
	}
	for i, x := range got {
		if math.IsNaN(x) || t.Bounds != nil && math.IsInf(x, 0) && !known[i] {
			return 0, 0, v.unwritten(i, x)
		}
	}
	return v.compare(some, want, bounds, at)
}

// positions returns where the elements of a sample are in the part that counts.
func (v *View) positions(t *Tensor) []int {
	list := make([]int, len(t.Sample))
	for i, n := range t.Sample {
		stride := 1
		for a := len(t.Shape) - 1; a >= 0; a-- {
			list[i] += n % t.Shape[a] * stride
			n /= t.Shape[a]
			stride *= t.Part[a]
		}
	}
	return list
}

// compare compares elements. At has their places in the tensor; nil: got and want are whole.
func (v *View) compare(got, want, bounds []float64, at []int) (off, bound float64, err error) {
	place := func(i int) int {
		if at != nil {
			return at[i]
		}
		return i
	}
	worst, share := 0, math.Inf(-1)
	for i, w := range want {
		g, n := got[i], place(i)
		switch {
		case math.IsNaN(g) && !math.IsNaN(w):
			return 0, 0, fmt.Errorf("%s[%d] = NaN, want %g at %s: not written, or computed from NaN", v.Name, n, w, v.Index(n))
		case math.IsNaN(g) || math.IsInf(g, 0) && g == w:
			continue // want is the same
		case math.IsInf(g, 0) && v.overflows(w, bounds[i], g):
			continue // want is beyond the format
		case math.IsInf(g, 0) || math.IsInf(w, 0) || math.IsNaN(w):
			return 0, 0, fmt.Errorf("%s[%d] = %g, want %g at %s", v.Name, n, g, w, v.Index(n))
		}
		part := math.Abs(g-w) / bounds[i]
		if g == w {
			part = 0 // of a bound of 0, too
		}
		if !(part <= share) && !math.IsNaN(share) { // a bound of NaN allows nothing
			worst, share = i, part
		}
	}
	if math.IsInf(share, -1) {
		return 0, 0, nil // nothing is compared
	}
	g, w, n := got[worst], want[worst], place(worst)
	if off, bound = math.Abs(g-w), bounds[worst]; !(off <= bound) {
		err = fmt.Errorf("%s[%d] = %.9g, want %.9g: off by %.3g, tolerance %.2g at %s", v.Name, n, g, w, off, bound, v.Index(n))
	}
	return off, bound, err
}

// overflows reports whether a number that is at most bound from want rounds to the infinity in the
// format of the view.
func (v *View) overflows(want, bound, infinity float64) bool {
	return float64(v.DType.Round(float32(want+math.Copysign(bound, infinity)))) == infinity
}

func (v *View) unwritten(i int, x float64) error {
	return fmt.Errorf("%s[%d] = %g at %s: not written, or computed from what is not an input", v.Name, i, x, v.Index(i))
}

// Equal wants an output to have the same bits after the first run, amid NotFinite, and the
// second, amid Finite. All NaN are equal.
func Equal(first, second *View) error {
	a, b := first.Gather(), second.Gather()
	for i := range a {
		if !same(a[i], b[i]) && !(math.IsNaN(a[i]) && math.IsNaN(b[i])) {
			return fmt.Errorf("%s[%d] = %g in the first run, %g in a second at %s: "+
				"not deterministic, or it depends on memory that is not an input (which held %s, then %s)",
				first.Name, i, a[i], b[i], first.Index(i), NotFinite.Name, Finite.Name)
		}
	}
	return nil
}
