package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm/problem"
)

// Bound returns how far C (or X) of a kernel may be from want, for every element:
//
//	2 * max|plain - want|            twice the error of a plain program (FlashAttention's rule)
//	+ 2 * max|fl(want+0.3)-0.3-want|  of rounding to Out once more; a plain program may be lucky
//	+ Unit(in, p)                     what matrix units may cut off, see there
//
// with a ceiling, so that a bad plain program does not excuse a bad kernel:
//
//	8 * (max|want| + 0.3) * Eps/2    four roundings to Out, each of at most twice the result, and 0.3 as above
//	+ 4 * sqrt(k) * 2^-24 * k * largest product   sums in float32, random signs
//	+ Unit(in, p)
//
// Intermediate values may be larger than the result: Residual and Beta cancel, at most
// by what they hold, which counts as a result here.
func Bound(want, plain []float64, in Inputs, p problem.Problem) float64 {
	off, again, most := 0.0, 0.0, largest(in.C, in.R)
	for i, w := range want {
		off = max(off, math.Abs(plain[i]-w))
		again = max(again, math.Abs(float64(p.Out.Round(float32(w)+0.3))-0.3-w))
		most = max(most, math.Abs(w))
	}
	unit := Unit(in, p)
	sums := 4 * math.Sqrt(float64(p.K)) * 0x1p-24 * float64(p.K) * largest(in.A) * largest(in.B) * math.Abs(p.Scale())
	ceiling := 8*(most+0.3)*p.Out.Eps()/2 + sums + unit
	return min(2*off+2*again+unit, ceiling)
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
	return math.Ceil(float64(p.K)/4) * 0x1p-23 * math.Sqrt(largest(squares)) * math.Abs(p.Scale())
}

func square(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * v
	}
	return y
}

// largest returns the largest magnitude in the slices.
func largest(slices ...[]float64) float64 {
	most := 0.0
	for _, s := range slices {
		for _, v := range s {
			most = max(most, math.Abs(v))
		}
	}
	return most
}
