package tolerance

import "math"

// A Float is a number that a device computes in float32: what it is in exact arithmetic, and how far
// the device's may be from that. Arithmetic on Floats adds up the errors that Vulkan's specification
// ("Precision and Operation of SPIR-V Instructions") allows each operation, and that denormal numbers
// may be taken for 0. A multiply-add has no larger error than its parts.
type Float struct{ X, Off float64 }

const (
	unit   = 0x1p-23  // in the last place, relative to the number at the most
	normal = 0x1p-126 // the least normal number
)

// Exact returns a number that float32 holds.
func Exact(x float64) Float { return Float{X: x} }

// Constant returns a number that is rounded to float32 first.
func Constant(x float64) Float { return Float{x, Roundoff32 * math.Abs(x)} }

// Plus returns a + b.
func (a Float) Plus(b Float) Float { return operation(a.X+b.X, a.Off+b.Off, Roundoff32) }

// Minus returns a - b.
func (a Float) Minus(b Float) Float { return operation(a.X-b.X, a.Off+b.Off, Roundoff32) }

// Negative returns -a.
func (a Float) Negative() Float { return Float{-a.X, a.Off} }

// Times returns a * b.
func (a Float) Times(b Float) Float {
	return operation(a.X*b.X, math.Abs(a.X)*b.Off+math.Abs(b.X)*a.Off+a.Off*b.Off, Roundoff32)
}

// Inverse returns 1 / a, which is right to 2.5 units in the last place. a.Off is less than |a.X|.
func (a Float) Inverse() Float {
	size := math.Abs(a.X)
	return operation(1/a.X, a.Off/(size*(size-a.Off)), 2.5*unit)
}

// Exp returns exp(a), which is right to 3 + 2|a| units in the last place. Beyond 700, where float32
// has long been infinite or 0, it is exp(700) or exp(-700).
func (a Float) Exp() Float {
	at := max(-700, min(a.X, 700))
	x := math.Exp(at)
	return operation(x, x*math.Expm1(a.Off), (3+2*math.Abs(at))*unit)
}

// operation returns the result x of an operation, which is off by the errors of its operands, and by
// its own relative to the result.
func operation(x, off, own float64) Float { return Float{x, off + own*(math.Abs(x)+off) + normal} }
