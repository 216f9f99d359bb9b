package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/pipelines/tolerance"
)

// Bounds are how far outputs may be off, every element.
type Bounds struct{ C, X, S float64 }

// NewBounds returns those of a kernel, given the outputs of Multiply and Plain:
// tolerance.Plain for each, with the roundoff of terms that cancel, which are beta*C and
// R, and what matrix units cut off (Unit).
func NewBounds(want, plain Outputs, in Inputs, p problem.Problem) Bounds {
	terms := math.Abs(p.Beta)*tolerance.Largest(in.C) + tolerance.Largest(in.R)
	least := p.Out.Eps()/2*terms + Unit(in, p)
	return Bounds{
		C: tolerance.Plain(p.Out, want.C, plain.C, least),
		X: tolerance.Plain(p.Out, want.X, plain.X, least),
		S: tolerance.Plain(p.Out, want.S, plain.S, 0),
	}
}

// Unit bounds what a matrix unit loses that a plain program does not, for 16-bit
// operands and float32 results: NVIDIA's adds at least four products at a time to the
// sum and cuts the result off, instead of rounding it: 2^-23 of the partial sum each
// time, all to one side. Partial sums are about as large as the root of the sum of the
// squares of the products, of which the largest counts.
func Unit(in Inputs, p problem.Problem) float64 {
	if p.DType == dtype.Float32 || p.Out != dtype.Float32 {
		return 0 // rounding to 16 bits is 2^12 times as much and more
	}
	squares := products(Inputs{A: square(in.A), B: square(in.B)}, p)
	return math.Ceil(float64(p.K)/4) * 0x1p-23 * math.Sqrt(tolerance.Largest(squares)) * math.Abs(p.Scale())
}

func square(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * v
	}
	return y
}
