// Package ref computes gated linear units and their gradients in float64, and derives what a kernel
// may be off by, element by element, from the operations that the kernel makes. It uses no device.
package ref

import (
	"math"

	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/glu"
)

// A Result is a tensor with the largest error of each of its elements.
type Result struct{ Want, Bounds []float64 }

// Forward returns a(g) * u.
func Forward(g, u []float64, p glu.Problem) (y Result) {
	results(len(g), p, func(i int) []number {
		a, _ := Activation(p.Activation, g[i])
		value, _ := Bounded(p.Activation, g[i])
		return []number{{a * u[i], value.Times(tolerance.Exact(u[i]))}}
	}, &y)
	return y
}

// Backward returns dy * a'(g) * u and dy * a(g).
func Backward(g, u, dy []float64, p glu.Problem) (dg, du Result) {
	results(len(g), p, func(i int) []number {
		a, d := Activation(p.Activation, g[i])
		value, slope := Bounded(p.Activation, g[i])
		up := tolerance.Exact(dy[i])
		return []number{
			{dy[i] * d * u[i], up.Times(slope).Times(tolerance.Exact(u[i]))},
			{dy[i] * a, up.Times(value)},
		}
	}, &dg, &du)
	return dg, du
}

// A number is an element of a result: what is wanted, and the kernel's float32 before it is stored.
type number struct {
	want   float64
	kernel tolerance.Float
}

// results fills results with what of returns for each of n elements.
func results(n int, p glu.Problem, of func(i int) []number, to ...*Result) {
	for _, r := range to {
		*r = Result{make([]float64, n), make([]float64, n)}
	}
	parallel.Pieces(n, func(from, end int) {
		for i := from; i < end; i++ {
			for j, x := range of(i) {
				off := x.kernel.Off
				to[j].Want[i], to[j].Bounds[i] = x.want, off+tolerance.Stored(p.DType, math.Abs(x.want)+off)
			}
		}
	})
}

// The constants of GELU: √(2/π), which is twice the density of the normal distribution at 0.
var (
	root    = math.Sqrt(2 / math.Pi)
	density = root / 2
)

const cubic = 0.044715

// Activation returns a(x) and its derivative.
func Activation(a glu.Activation, x float64) (value, slope float64) {
	switch a {
	case glu.GELU:
		s := math.Erfc(-x/math.Sqrt2) / 2
		return x * s, s + x*density*math.Exp(-x*x/2)
	case glu.GELUTanh:
		s, rest := halves(2 * root * (x + cubic*x*x*x))
		return x * s, s + x*s*rest*2*root*(1+3*cubic*x*x)
	}
	s, rest := halves(x)
	return x * s, s * (1 + x*rest)
}

// halves returns (1 + tanh(x/2)) / 2 and (1 - tanh(x/2)) / 2, without cancellation.
func halves(x float64) (s, rest float64) { return 1 / (1 + math.Exp(-x)), 1 / (1 + math.Exp(x)) }

// Bounded returns the same as the operations of shaders/lib/activation.glsl.
func Bounded(a glu.Activation, g float64) (value, slope tolerance.Float) {
	one, x := tolerance.Exact(1), tolerance.Exact(g)
	if a == glu.SiLU {
		s, rest := sigmoids(x)
		return x.Times(s), s.Times(one.Plus(x.Times(rest)))
	}
	b := tolerance.Exact(max(-16, min(g, 16)))
	square := b.Times(b)
	if a == glu.GELU {
		power := square.Times(tolerance.Exact(-0.5)).Exp()
		ratio := math.Erfc(math.Abs(b.X)/math.Sqrt2) / 2 * math.Exp(b.X*b.X/2)
		s := power.Times(tolerance.Float{X: ratio, Off: 0x1p-20 * ratio})
		if b.X >= 0 {
			s = one.Minus(s)
		}
		return x.Times(s), s.Plus(b.Times(power.Times(tolerance.Constant(density))))
	}
	k := func(c float64) tolerance.Float {
		return tolerance.Constant(2 * root).Plus(tolerance.Constant(2 * root * c).Times(square))
	}
	s, rest := sigmoids(b.Times(k(cubic)))
	return x.Times(s), s.Times(one.Plus(b.Times(rest).Times(k(3 * cubic))))
}

// sigmoids returns s = 1 / (1 + exp(-x)) and 1 - s.
func sigmoids(x tolerance.Float) (s, rest tolerance.Float) {
	e := x.Negative().Exp()
	s = tolerance.Exact(1).Plus(e).Inverse()
	if e.X > 3e38 {
		e = tolerance.Exact(3e38)
	}
	return s, e.Times(s)
}
