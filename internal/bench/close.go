package bench

import (
	"fmt"
	"math"
)

// A Tolerance is that of torch.allclose and numpy.allclose: an output is close where
//
//	|got - want| <= Abs + Rel * |want|
//
// Equal infinities are close. NaN is close to nothing. It is checked in addition to the limits
// that follow from the format: a wrong output stays wrong.
type Tolerance struct{ Abs, Rel float64 }

// String returns the rule in words.
func (t Tolerance) String() string { return fmt.Sprintf("atol %g + rtol %g * |want|", t.Abs, t.Rel) }

// check returns an error unless all outputs are close, and nil for a nil tolerance.
func (t *Tolerance) check(list Expectations, got map[string][]float32) error {
	for _, e := range list {
		x, ok := got[e.Name]
		if !ok || t == nil {
			continue
		}
		worst, far, over := -1, 0, 0.0
		for i, w := range e.Want {
			g := float64(x[e.at(i)])
			allowed := t.Abs + t.Rel*math.Abs(w)
			if g == w || math.Abs(g-w) <= allowed && !math.IsInf(w, 0) {
				continue
			}
			far++
			ratio := math.Abs(g-w) / allowed
			if math.IsNaN(ratio) {
				ratio = math.Inf(1)
			}
			if worst < 0 || ratio > over {
				worst, over = i, ratio
			}
		}
		if worst >= 0 {
			g, w := float64(x[e.at(worst)]), e.Want[worst]
			return fmt.Errorf("%s is not close in %d of %d compared elements, the worst %.6g, want %.6g: off by %.3g, allowed %.3g, which is %v",
				e.Name, far, len(e.Want), g, w, math.Abs(g-w), t.Abs+t.Rel*math.Abs(w), t)
		}
	}
	return nil
}
