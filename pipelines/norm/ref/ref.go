package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
)

// Inputs are the tensors of a call, row-major: X and Residual (rows, cols), W (cols).
// Residual is nil if the problem has none.
type Inputs struct{ X, Residual, W []float64 }

// Outputs are the results of the forward pass: Y and Sum (rows, cols), Mean and Rstd
// (rows).
type Outputs struct{ Y, Sum, Mean, Rstd []float64 }

// Upstream are the gradients that a backward pass is given: DY and DSum (rows, cols).
// DSum is nil if the problem has no residual.
type Upstream struct{ DY, DSum []float64 }

// Gradients are the results of the backward pass: DX (rows, cols), the gradient of x
// and of residual, and DW (cols).
type Gradients struct{ DX, DW []float64 }

// Float64 stands for a format that does not round.
func exact(x float64) float64 { return x }

// rounder returns what rounds to a format.
func rounder(t dtype.DType) func(float64) float64 {
	return func(x float64) float64 { return float64(t.Round(float32(x))) }
}

// Forward computes
//
//	s       = x + residual                           if there is a residual; else x
//	mean[r] = mean(s[r,:])                           0 for RMSNorm
//	rstd[r] = 1 / sqrt(mean((s[r,:] - mean[r])²) + eps)
//	y[r,c]  = (s[r,c] - mean[r]) * rstd[r] * w[c]
//
// in float64. A residual stream is stored, so s is rounded to p.DType, and the rest
// computed from that; Sum is s. A mean of rounded numbers is what a kernel has, too.
func Forward(in Inputs, p Problem) Outputs {
	return forward(in, p, func(s []float64) float64 { return sum64(s) }, exact)
}

// PlainForward is Forward as a plain program in float32 computes it, one row after the
// other from left to right, with y rounded to p.DType.
func PlainForward(in Inputs, p Problem) Outputs {
	out := forward(in, p, sum32, rounder(dtype.Float32))
	round := rounder(p.DType)
	for i, y := range out.Y {
		out.Y[i] = round(y)
	}
	return out
}

// sum64 and sum32 add from left to right.
func sum64(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum
}

func sum32(x []float64) float64 {
	sum := float32(0)
	for _, v := range x {
		sum += float32(v)
	}
	return float64(sum)
}

func forward(in Inputs, p Problem, sum func([]float64) float64, round func(float64) float64) Outputs {
	n := p.Cols
	out := Outputs{Y: make([]float64, len(in.X)), Sum: in.X, Mean: make([]float64, p.Rows), Rstd: make([]float64, p.Rows)}
	if p.Residual {
		store := rounder(p.DType)
		out.Sum = make([]float64, len(in.X))
		for i, x := range in.X {
			out.Sum[i] = store(round(x + in.Residual[i]))
		}
	}
	squares := make([]float64, n)
	for r := range p.Rows {
		s := out.Sum[r*n : (r+1)*n]
		mean := 0.0
		if !p.RMS {
			mean = round(sum(s) / float64(n))
		}
		for c, x := range s {
			d := round(x - mean)
			squares[c] = round(d * d)
		}
		rstd := round(1 / round(math.Sqrt(round(round(sum(squares)/float64(n))+round(p.Eps)))))
		out.Mean[r], out.Rstd[r] = mean, rstd
		for c, x := range s {
			out.Y[r*n+c] = round(round(round(x-mean)*rstd) * in.W[c])
		}
	}
	return out
}

// Backward computes the gradients of a loss whose gradients by y and sum are up:
// with z = (s - mean) * rstd and g = dy * w, for each row
//
//	dx = rstd * (g - mean(g) - z * mean(g * z)) + dsum    mean(g) is left out for RMSNorm
//	dw = sum over rows of dy * z
//
// in float64, mean and rstd included: they are computed again from s.
func Backward(s []float64, w []float64, up Upstream, p Problem) Gradients {
	q := p
	q.Residual = false // s has it already
	out := forward(Inputs{X: s, W: w}, q, sum64, exact)
	return backward(s, w, out.Mean, out.Rstd, up, p, sum64, exact)
}

// PlainBackward is Backward as a plain program in float32 computes it, from mean and
// rstd in float32, with the gradients rounded to their formats.
func PlainBackward(s []float64, w []float64, up Upstream, p Problem) Gradients {
	q := p
	q.Residual = false
	out := forward(Inputs{X: s, W: w}, q, sum32, rounder(dtype.Float32))
	g := backward(s, w, out.Mean, out.Rstd, up, p, sum32, rounder(dtype.Float32))
	for i, round := 0, rounder(p.DType); i < len(g.DX); i++ {
		g.DX[i] = round(g.DX[i])
	}
	for i, round := 0, rounder(p.WeightDType); i < len(g.DW); i++ {
		g.DW[i] = round(g.DW[i])
	}
	return g
}

func backward(s, w, mean, rstd []float64, up Upstream, p Problem, sum func([]float64) float64, round func(float64) float64) Gradients {
	n := p.Cols
	out := Gradients{DX: make([]float64, len(s)), DW: make([]float64, n)}
	z, g, gz := make([]float64, n), make([]float64, n), make([]float64, n)
	for r := range p.Rows {
		dy := up.DY[r*n : (r+1)*n]
		for c, x := range s[r*n : (r+1)*n] {
			z[c] = round(round(x-mean[r]) * rstd[r])
			g[c] = round(dy[c] * w[c])
			gz[c] = round(g[c] * z[c])
			out.DW[c] = round(out.DW[c] + round(dy[c]*z[c]))
		}
		first, second := 0.0, round(sum(gz)/float64(n))
		if !p.RMS {
			first = round(sum(g) / float64(n))
		}
		for c := range n {
			dx := round(rstd[r] * round(round(g[c]-first)-round(z[c]*second)))
			if p.Residual {
				dx = round(dx + up.DSum[r*n+c])
			}
			out.DX[r*n+c] = dx
		}
	}
	return out
}
