package guard

import (
	"fmt"
	"math"
)

// A Diff is the worst disagreement of two slices.
type Diff struct {
	Index     int
	Got, Want float64
	Off       float64 // |Got - Want|; +Inf if only one is NaN or infinite
}

// MaxDiff returns the worst disagreement of got and want, which have the same length. Equal
// infinities agree. NaN agrees with nothing. Index is -1 if the slices are empty.
func MaxDiff(got, want []float64) Diff {
	worst := Diff{Index: -1, Off: -1}
	for i, w := range want {
		g := got[i]
		off := math.Abs(g - w)
		if g == w {
			off = 0 // Inf - Inf is NaN
		}
		if math.IsNaN(off) {
			off = math.Inf(1)
		}
		if off > worst.Off {
			worst = Diff{i, g, w, off}
		}
	}
	worst.Off = max(worst.Off, 0)
	return worst
}

// Compare compares an output that was full of poison with want, in logical order: no NaN where
// want has none, infinities equal, and the worst error within the bound.
func (v *View) Compare(want []float64, bound float64) (Diff, error) {
	return v.compare(v.Gather(), want, func(int) float64 { return bound }, func(i int) int { return i })
}

// CompareEach is Compare with a bound for each element. The worst error is the largest relative
// to its bound.
func (v *View) CompareEach(want, bounds []float64) (Diff, error) {
	return v.compare(v.Gather(), want, func(i int) float64 { return bounds[i] }, func(i int) int { return i })
}

// CompareSample is Compare of the elements at some positions, in logical order. All others must
// be written, and not be NaN.
func (v *View) CompareSample(at []int, want []float64, bound float64) (Diff, error) {
	if err := v.check(math.IsNaN); err != nil {
		return Diff{}, err
	}
	all, got := v.Gather(), make([]float64, len(at))
	for i, n := range at {
		got[i] = all[n]
	}
	return v.compare(got, want, func(int) float64 { return bound }, func(i int) int { return at[i] })
}

func (v *View) compare(got, want []float64, bound func(i int) float64, at func(i int) int) (Diff, error) {
	for i, w := range want {
		if math.IsNaN(got[i]) && !math.IsNaN(w) {
			return Diff{}, fmt.Errorf("%s[%d] = NaN, want %g at %s: not written, or computed from NaN", v.Name, at(i), w, v.Index(at(i)))
		}
	}
	worst, share, most := Diff{Index: -1}, math.Inf(-1), 0.0
	for i, w := range want {
		g := got[i]
		switch {
		case math.IsNaN(g) || math.IsInf(g, 0) && g == w:
			continue // want is the same
		case math.IsInf(g, 0) || math.IsInf(w, 0) || math.IsNaN(w):
			return Diff{at(i), g, w, math.Inf(1)}, fmt.Errorf("%s[%d] = %g, want %g at %s", v.Name, at(i), g, w, v.Index(at(i)))
		}
		off := math.Abs(g - w)
		part := off / bound(i)
		if off == 0 {
			part = 0 // of a bound of 0, too
		}
		if !(part <= share) && !math.IsNaN(share) { // a bound of NaN allows nothing
			worst, share, most = Diff{at(i), g, w, off}, part, bound(i)
		}
	}
	if worst.Index >= 0 && !(worst.Off <= most) {
		return worst, fmt.Errorf("%s[%d] = %.9g, want %.9g: off by %.3g, tolerance %.2g at %s",
			v.Name, worst.Index, worst.Got, worst.Want, worst.Off, most, v.Index(worst.Index))
	}
	return worst, nil
}

// CheckFinite wants every element to be a finite number.
func (v *View) CheckFinite() error {
	return v.check(func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) })
}

// check wants wrong to be false for every element.
func (v *View) check(wrong func(x float64) bool) error {
	for i, x := range v.Gather() {
		if wrong(x) {
			return fmt.Errorf("%s[%d] = %g at %s: not written, or computed from what is not an input", v.Name, i, x, v.Index(i))
		}
	}
	return nil
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
