package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
)

// Bounds are how far outputs may be off, every element.
type Bounds struct{ C, X, S float64 }

// NewBounds returns those of a kernel, given the outputs of Multiply and Plain:
// tolerance.Plain for each. Plain's error says little where outputs are few and it is right
// by luck, so as least there are the roundoff of terms that cancel, which are beta*C and R,
// of sums in another order (Sums), and of a device's exponential.
func NewBounds(want, plain Outputs, in Inputs, p problem.Problem) Bounds {
	terms := math.Abs(p.Beta)*tolerance.Largest(in.C) + tolerance.Largest(in.R)
	sums := tolerance.Roundoff32*math.Abs(p.Beta)*tolerance.Largest(in.C) + Sums(in, p, p.Out.Eps()/2*tolerance.Largest(want.C))
	return Bounds{
		C: tolerance.Plain(p.Out, want.C, plain.C, p.Out.Eps()/2*terms+sums+want.roundoff),
		X: tolerance.Plain(p.Out, want.X, plain.X, p.Out.Eps()/2*terms+sums),
		S: tolerance.Plain(p.Out, want.S, plain.S, want.ofS),
	}
}

// Sums bounds the error of sums of products. Where that is below enough it need not be exact.
//
// Terms in any order and of random signs have partial sums up to about the root of the sum of
// their squares, and k roundings of those, which go both ways. The largest output counts. The
// high and low parts of float32 operands are off by 2^-21 of a term at most. That is 4 times what
// is counted for a single term, and tolerance.Plain allows 4 times the counted error.
//
// A matrix unit loses more with 16-bit operands. NVIDIA's adds at least four products at a time
// to the sum and truncates the result: 2^-23 of the partial sum each time, always to one side.
func Sums(in Inputs, p problem.Problem, enough float64) float64 {
	if p.K == 0 {
		return 0
	}
	rate := sumsRate(p) * math.Abs(p.Scale())
	// No output's squares add up to more than this.
	a, b := tolerance.Largest(in.A), tolerance.Largest(in.B)
	if most := rate * math.Sqrt(float64(p.K)) * a * b; most <= enough {
		return most
	}
	return rate * math.Sqrt(tolerance.Largest(products(Inputs{A: square(in.A), B: square(in.B)}, p)))
}

// sumsRate returns what Sums counts for each root of a sum of squares.
func sumsRate(p problem.Problem) float64 {
	rate := tolerance.Roundoff32 * max(2, math.Sqrt(float64(p.K)))
	if p.DType != dtype.Float32 {
		rate = max(rate, math.Ceil(float64(p.K)/4)*0x1p-23)
	}
	return rate
}

// activationRoundoff bounds the error of an activation for a sum v and X, in float32 arithmetic,
// in C and in S. A device's exp(x) may be off by 3 + 2|x| units in the last place (Vulkan
// specification), and a division by 2.5. Like gmm's bound, this counts half of that;
// tolerance.Plain allows 4 times as much in float32.
func activationRoundoff(a problem.Activation, v, x float64) (c, s float64) {
	silu := func(v float64) float64 {
		s := 1 / (1 + math.Exp(-v))
		return tolerance.Roundoff32 * math.Abs(v) * s * ((1-s)*(3+2*math.Abs(v)) + 1.5)
	}
	switch a {
	case problem.SiLU, problem.SiLUKeep:
		return silu(v), 0
	case problem.TimesDSiLU, problem.TimesDSiLUKeep:
		s := 1 / (1 + math.Exp(-x))
		// silu'(x) = s * (1 + x*(1-s)), in which terms may cancel, and 1-s is off by as much as s
		off := s * ((1-s)*(3+2*math.Abs(x))*math.Abs(1+x*(1-2*s)) + 1 + math.Abs(x)*(2*(1-s)+s))
		return tolerance.Roundoff32 * math.Abs(v) * off, silu(x)
	}
	return 0, 0
}

// Spread returns how far each element of op(A)*op(B) may be off if those of A and B may be
// by offA and offB, nil for not at all, all of random signs; and by Sums.
func Spread(in Inputs, offA, offB []float64, p problem.Problem) []float64 {
	a, b := square(in.A), square(in.B)
	sums := products(Inputs{A: a, B: b}, p)
	off := make([]float64, len(sums))
	for _, x := range []struct {
		Inputs
		on bool
	}{{Inputs{A: square(offA), B: b}, offA != nil}, {Inputs{A: a, B: square(offB)}, offB != nil}} {
		if x.on {
			for i, v := range products(x.Inputs, p) {
				off[i] += v
			}
		}
	}
	for i := range off {
		off[i] = math.Sqrt(off[i]) + sumsRate(p)*math.Sqrt(sums[i])
	}
	return off
}

func square(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * v
	}
	return y
}
