// Package ref computes layer normalization and its gradients in float64 and, as a plain program, in
// the storage format, from which a kernel's tolerance is derived. It uses no device.
//
//	Forward, Backward            the formulas, in float64
//	PlainForward, PlainBackward  the same, float32, rounded where a kernel stores
//	Bound                        what a kernel may be off by
package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/parallel"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/norm"
)

// Inputs are the tensors of a call, row-major: X and Residual (rows, cols), W and B (cols).
// Residual and B are nil if the problem has none.
type Inputs struct{ X, Residual, W, B []float64 }

// Outputs are the results of the forward pass: Y and Sum (rows, cols), Mean and Rstd
// (rows).
type Outputs struct{ Y, Sum, Mean, Rstd []float64 }

// Upstream are the gradients that a backward pass is given: DY and DSum (rows, cols).
// DSum is nil if the problem has no residual.
type Upstream struct{ DY, DSum []float64 }

// Gradients are the results of the backward pass: DX (rows, cols), the gradient of x
// and of residual, and DW and DB (cols).
type Gradients struct{ DX, DW, DB []float64 }

// A number is a format that formulas are computed in. Conversions around products forbid fused
// multiply-add, which some architectures' compilers would use.
type number interface{ float32 | float64 }

// Forward computes
//
//	s       = round(x + residual)                    to the format of x, if there is a residual; else x
//	mean[r] = mean(s[r,:])                           0 for RMSNorm
//	rstd[r] = 1 / sqrt(mean((s[r,:] - mean[r])²) + eps)
//	y[r,c]  = (s[r,c] - mean[r]) * rstd[r] * w[c] + b[c]    without b unless p.Bias
//
// in float64; Sum is s. A residual stream is stored, so the rest is computed from the rounded s,
// as in a kernel.
func Forward(in Inputs, p norm.Problem) Outputs { return forward[float64](in, p) }

// PlainForward is Forward as a plain program in float32 computes it, one row after the
// other from left to right, with y rounded to p.DType. Means alone are in float64: from
// one that is wrong by more than the deviation of its row would follow bounds that excuse
// a kernel for the same mistake.
func PlainForward(in Inputs, p norm.Problem) Outputs {
	out := forward[float32](in, p)
	round(out.Y, p.DType)
	return out
}

func round(x []float64, t dtype.DType) {
	parallel.Pieces(len(x), func(from, to int) {
		for i, v := range x[from:to] {
			x[from+i] = float64(t.Round(float32(v)))
		}
	})
}

func forward[F number](in Inputs, p norm.Problem) Outputs {
	n := p.Cols
	out := Outputs{Y: make([]float64, len(in.X)), Sum: in.X, Mean: make([]float64, p.Rows), Rstd: make([]float64, p.Rows)}
	if p.Residual {
		out.Sum = make([]float64, len(in.X))
		for i, x := range in.X {
			out.Sum[i] = x + in.Residual[i] // of two short numbers: exact, or rounded as float32 would
		}
		round(out.Sum, p.DType)
	}
	parallel.Pieces(p.Rows, func(from, to int) {
		w, b := narrow[F](in.W), make([]F, n)
		if p.Bias {
			b = narrow[F](in.B)
		}
		for r := from; r < to; r++ {
			s := out.Sum[r*n : (r+1)*n]
			mean, rstd := statistics[F](s, &p)
			out.Mean[r], out.Rstd[r] = float64(F(mean)), float64(rstd)
			for c, x := range s {
				out.Y[r*n+c] = float64(F(F(F(x-mean)*rstd)*w[c]) + b[c])
			}
		}
	})
	return out
}

func narrow[F number](x []float64) []F {
	y := make([]F, len(x))
	for i, v := range x {
		y[i] = F(v)
	}
	return y
}

// statistics returns mean and rstd of a row. The mean is the mean of the differences from the
// first element, which is exact for equal elements; squares are added from left to right.
func statistics[F number](s []float64, p *norm.Problem) (mean float64, rstd F) {
	if !p.RMS {
		for _, x := range s {
			mean += x - s[0]
		}
		mean = s[0] + mean/float64(len(s))
	}
	var squares F
	for _, x := range s {
		d := F(x - mean)
		squares += F(d * d)
	}
	return mean, 1 / F(math.Sqrt(float64(squares/F(len(s))+F(p.Eps))))
}

// Backward computes the gradients of a loss whose gradients by y and sum are up:
// with z = (s - mean) * rstd and g = dy * w, for each row
//
//	dx = rstd * (g - mean(g) - z * mean(g * z)) + dsum    mean(g) is left out for RMSNorm
//	dw = sum over rows of dy * z
//
// in float64, mean and rstd included: they are computed again from s.
func Backward(s []float64, w []float64, up Upstream, p norm.Problem) Gradients {
	return backward[float64](s, w, up, p)
}

// PlainBackward is Backward as a plain program in float32 computes it, from rstd in
// float32 and, as PlainForward, means in float64, with the gradients rounded to their
// formats.
func PlainBackward(s []float64, w []float64, up Upstream, p norm.Problem) Gradients {
	g := backward[float32](s, w, up, p)
	round(g.DX, p.DType)
	round(g.DW, p.WeightDType)
	round(g.DB, p.WeightDType)
	return g
}

func backward[F number](s, w []float64, up Upstream, p norm.Problem) Gradients {
	n := p.Cols
	out := Gradients{DX: make([]float64, len(s)), DW: make([]float64, n), DB: make([]float64, n)}
	mean, rstd := make([]float64, p.Rows), make([]F, p.Rows)
	parallel.Pieces(p.Rows, func(from, to int) {
		weight, z, g := narrow[F](w), make([]F, n), make([]F, n)
		for r := from; r < to; r++ {
			row := s[r*n : (r+1)*n]
			mean[r], rstd[r] = statistics[F](row, &p)
			var first, second F
			for c, x := range row {
				z[c] = F(x-mean[r]) * rstd[r]
				g[c] = F(up.DY[r*n+c]) * weight[c]
				first += g[c]
				second += F(g[c] * z[c])
			}
			first, second = first/F(n), second/F(n)
			if p.RMS {
				first = 0
			}
			for c := range n {
				dx := rstd[r] * (F(g[c]-first) - F(z[c]*second))
				if p.Residual {
					dx = F(dx) + F(up.DSum[r*n+c])
				}
				out.DX[r*n+c] = float64(dx)
			}
		}
	})
	parallel.Pieces(n, func(from, to int) {
		dw, db := make([]F, to-from), make([]F, to-from)
		for r := range p.Rows {
			for c := from; c < to; c++ {
				z := F(s[r*n+c]-mean[r]) * rstd[r]
				dw[c-from] += F(F(up.DY[r*n+c]) * z)
				db[c-from] += F(up.DY[r*n+c])
			}
		}
		for i, x := range dw {
			out.DW[from+i], out.DB[from+i] = float64(x), float64(db[i])
		}
	})
	return out
}

// OutputBounds and GradientBounds are the largest absolute errors of results.
type (
	OutputBounds   struct{ Y, Sum, Mean, Rstd float64 }
	GradientBounds struct{ DX, DW, DB float64 }
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
// allowed with nine terms, where plain's error was small by luck. The same holds for db. In 16-bit rows the rounding of
// the means that a kernel is given counts, too. In float32 rows it must not show.
func BackwardBounds(want, plain Gradients, s, w []float64, up Upstream, p norm.Problem) GradientBounds {
	term, rounding, biases := 0.0, make([]float64, p.Cols), make([]float64, p.Cols)
	for r := range p.Rows {
		row := s[r*p.Cols : (r+1)*p.Cols]
		mean, rstd := statistics[float64](row, &p)
		off := math.Abs(mean-float64(float32(mean))) * rstd
		for c, dy := range up.DY[r*p.Cols : (r+1)*p.Cols] {
			if t := math.Abs(rstd * dy * w[c]); !math.IsInf(t, 0) {
				term = max(term, t)
			}
			biases[c] += tolerance.Roundoff32 * math.Abs(dy)
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
		DB: tolerance.Plain(p.WeightDType, want.DB, plain.DB, tolerance.Largest(biases)),
	}
}
