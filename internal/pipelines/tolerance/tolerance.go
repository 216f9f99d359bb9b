// Package tolerance derives how far the results of kernels may be from a float64
// reference. There is one rule, for all kernels of pipelines: twice the error of a plain program in
// the storage format, on the same inputs.
package tolerance

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
)

// Roundoff32 is the largest relative error of one rounded operation in float32.
const Roundoff32 = 0x1p-24

// Plain returns how far a result may be from want, in the maximum norm, given a plain program's
// result from the same inputs in the storage format:
//
//	times * max(max|plain - want|, half * max|want|, least)
//
// Plain's error is the error of the format on these very inputs, more than once because a
// kernel sums in another order. Where plain is exact by luck, its error counts as one
// rounding of the largest result at the least, half being the roundoff of the format (below
// the normal numbers of float16, half a step of 2^-24). Plain's error also counts as least at the
// least: the float32 roundoff of terms that cancel, which a caller knows.
// times is 2 for 16 bits, and 4 for float32, the project's promise, as internal/attention/ref
// explains: a device's exp2, sqrt and division are right to some units in the last
// place, Go's to half of one.
//
// A result that must be infinite or NaN counts for nothing here: it is compared for
// itself.
func Plain(t dtype.DType, want, plain []float64, least float64) float64 {
	off := least
	for i, w := range want {
		if d := math.Abs(plain[i] - w); !math.IsInf(d, 0) && !math.IsNaN(d) {
			off = max(off, d)
		}
	}
	times := 2.0
	if t == dtype.Float32 {
		times = 4
	}
	return times * max(off, Stored(t, Largest(want)))
}

// Stored returns how far a number may be from itself in a format, where it does not
// overflow.
func Stored(t dtype.DType, x float64) float64 {
	off := t.Eps() / 2 * math.Abs(x)
	if t == dtype.Float16 {
		off = max(off, 0x1p-25)
	}
	return off
}

// Largest returns the largest finite magnitude in x.
func Largest(x []float64) float64 {
	most := 0.0
	for _, v := range x {
		if a := math.Abs(v); !math.IsInf(a, 0) && !math.IsNaN(a) {
			most = max(most, a)
		}
	}
	return most
}
