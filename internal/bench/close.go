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

// A pair is an output, or the part of it that is compared, and its reference.
type pair struct {
	name      string
	got, want []float64
}

// A pairer is a Reference that can return the numbers that it compares.
type pairer interface {
	pairs(got map[string][]float32) []pair
}

// check returns an error unless all pairs of a reference are close, and nil for a nil tolerance.
func (t *Tolerance) check(want Reference, got map[string][]float32) error {
	if t == nil {
		return nil
	}
	x, ok := want.(pairer)
	if !ok {
		return nil
	}
	for _, p := range x.pairs(got) {
		worst, far, over := -1, 0, 0.0
		for i, w := range p.want {
			g := p.got[i]
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
			g, w := p.got[worst], p.want[worst]
			return fmt.Errorf("%s is not close in %d of %d compared elements, the worst %.6g, want %.6g: off by %.3g, allowed %.3g, which is %v",
				p.name, far, len(p.want), g, w, math.Abs(g-w), t.Abs+t.Rel*math.Abs(w), t)
		}
	}
	return nil
}

// pairs implements pairer.
func (list Expectations) pairs(got map[string][]float32) (all []pair) {
	for _, e := range list {
		x, ok := got[e.Name]
		if !ok {
			continue
		}
		p := pair{name: e.Name, want: e.Want, got: make([]float64, len(e.Want))}
		for i := range e.Want {
			at := i
			if e.At != nil {
				at = e.At[i]
			}
			p.got[i] = float64(x[at])
		}
		all = append(all, p)
	}
	return all
}

// pairs implements pairer.
func (o *oracle) pairs(got map[string][]float32) (all []pair) {
	d := o.p.ValueHeadDim()
	if x := got["o"]; x != nil {
		p := pair{name: "o", want: o.wantO}
		for _, r := range o.rows {
			at, _ := o.in.At(o.p, r)
			for _, y := range x[at*d:][:d] {
				p.got = append(p.got, float64(y))
			}
		}
		all = append(all, p)
	}
	if x := got["lse"]; x != nil {
		p := pair{name: "lse", want: o.wantLSE}
		for _, r := range o.rows {
			_, at := o.in.At(o.p, r)
			p.got = append(p.got, float64(x[at]))
		}
		all = append(all, p)
	}
	return all
}

// pairs implements pairer.
func (g *gradientOracle) pairs(got map[string][]float32) (all []pair) {
	for _, x := range g.sample.Check(got["dq"], got["dk"], got["dv"]) {
		all = append(all, pair{x.Name, x.Got, x.Want})
	}
	return all
}
