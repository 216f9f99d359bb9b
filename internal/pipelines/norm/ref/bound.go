package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/norm"
)

// OutputBounds and GradientBounds are the largest absolute errors of results.
type (
	OutputBounds   struct{ Y, Sum, Mean, Rstd float64 }
	GradientBounds struct{ DX, DW float64 }
)

// Bounds returns how far a kernel may be from want, what Forward computes, by the rule
// of tolerance.Plain. Plain is what PlainForward computes of the same inputs. Sum is one
// addition, so it is exact. A mean is off by the roundoff of the largest element at
// the least: it is a sum of differences from an element, which are rounded. From y that
// excuses nothing, as plain's mean is right: of rows of equal elements y must be 0.
func Bounds(want, plain Outputs, p norm.Problem) OutputBounds {
	return OutputBounds{
		Y:    tolerance.Plain(p.DType, want.Y, plain.Y, 0),
		Mean: tolerance.Plain(dtype.Float32, want.Mean, plain.Mean, tolerance.Roundoff32*tolerance.Largest(want.Sum)),
		Rstd: tolerance.Plain(dtype.Float32, want.Rstd, plain.Rstd, 0),
	}
}

// BackwardBounds returns how far a kernel may be from want, the result of Backward, by the same
// rule. In dx, g and its projections cancel, in a short row all of it. So rounding the largest
// rstd * g counts as plain's error at least, and so does rounding dsum, before dx is rounded to
// its format. In dw one rounding of each term counts: an H200 was off by a fourth more than
// allowed with nine terms, where plain's error was small by luck. In 16-bit rows the rounding of
// the means that a kernel is given counts, too. In float32 rows it must not show.
func BackwardBounds(want, plain Gradients, s, w []float64, up Upstream, p norm.Problem) GradientBounds {
	term, rounding := 0.0, make([]float64, p.Cols)
	for r := range p.Rows {
		row := s[r*p.Cols : (r+1)*p.Cols]
		mean, rstd := statistics[float64](row, &p)
		off := math.Abs(mean-float64(float32(mean))) * rstd
		for c, dy := range up.DY[r*p.Cols : (r+1)*p.Cols] {
			if t := math.Abs(rstd * dy * w[c]); !math.IsInf(t, 0) {
				term = max(term, t)
			}
			if x := math.Abs(dy * (row[c] - mean) * rstd); !math.IsInf(x, 0) {
				rounding[c] += tolerance.Roundoff32 * x
			}
			if p.DType.Size() == 2 {
				rounding[c] += math.Abs(dy) * off
			}
		}
	}
	return GradientBounds{
		DX: tolerance.Plain(p.DType, want.DX, plain.DX, tolerance.Roundoff32*(term+tolerance.Largest(up.DSum))),
		DW: tolerance.Plain(p.WeightDType, want.DW, plain.DW, tolerance.Largest(rounding)),
	}
}
