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
	Bound     float64 // how far it may be off
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
			worst = Diff{Index: i, Got: g, Want: w, Off: off}
		}
	}
	worst.Off = max(worst.Off, 0)
	return worst
}

// compareTensor compares an output that was full of poison with what t wants: no NaN where t has
// none, infinities equal, and the worst error within its bound.
func (v *View) compareTensor(t *Tensor) (Diff, error) {
	bound := func(int) float64 { return t.Bound }
	all, want, at, bounds := v.Gather(), t.Want, t.Sample, t.Bounds
	if at == nil {
		want, bounds = t.part(want), t.part(bounds)
	} else if t.Part != nil {
		at = v.positions(t)
	}
	if bounds != nil {
		bound = func(i int) float64 { return bounds[i] }
	}
	if at == nil {
		return v.compare(all, want, bound, func(i int) int { return i })
	}
	got, known := make([]float64, len(at)), map[int]bool{}
	for i, n := range at {
		if got[i] = all[n]; bounds != nil {
			known[n] = true
		}
	}
	for i, x := range all {
		if math.IsNaN(x) || bounds != nil && math.IsInf(x, 0) && !known[i] {
			return Diff{}, v.unwritten(i, x)
		}
	}
	return v.compare(got, want, bound, func(i int) int { return at[i] })
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

func (v *View) compare(got, want []float64, bound func(i int) float64, at func(i int) int) (Diff, error) {
	for i, w := range want {
		if math.IsNaN(got[i]) && !math.IsNaN(w) {
			return Diff{}, fmt.Errorf("%s[%d] = NaN, want %g at %s: not written, or computed from NaN", v.Name, at(i), w, v.Index(at(i)))
		}
	}
	worst, share := Diff{Index: -1}, math.Inf(-1)
	for i, w := range want {
		g := got[i]
		switch {
		case math.IsNaN(g) || math.IsInf(g, 0) && g == w:
			continue // want is the same
		case math.IsInf(g, 0) || math.IsInf(w, 0) || math.IsNaN(w):
			return Diff{at(i), g, w, math.Inf(1), bound(i)}, fmt.Errorf("%s[%d] = %g, want %g at %s", v.Name, at(i), g, w, v.Index(at(i)))
		}
		off := math.Abs(g - w)
		part := off / bound(i)
		if off == 0 {
			part = 0 // of a bound of 0, too
		}
		if !(part <= share) && !math.IsNaN(share) { // a bound of NaN allows nothing
			worst, share = Diff{at(i), g, w, off, bound(i)}, part
		}
	}
	if worst.Index >= 0 && !(worst.Off <= worst.Bound) {
		return worst, fmt.Errorf("%s[%d] = %.9g, want %.9g: off by %.3g, tolerance %.2g at %s",
			v.Name, worst.Index, worst.Got, worst.Want, worst.Off, worst.Bound, v.Index(worst.Index))
	}
	return worst, nil
}

// check wants wrong to be false for every element.
func (v *View) check(wrong func(x float64) bool) error {
	for i, x := range v.Gather() {
		if wrong(x) {
			return v.unwritten(i, x)
		}
	}
	return nil
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
