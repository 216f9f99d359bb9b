// Package ref computes products of normalized rows in float64, and derives what a kernel may be off by, element by
// element, from the operations that the kernel makes. It uses no device.
package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	gemm "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	glus "github.com/flashvk/flashvk/internal/pipelines/glu/ref"
	norms "github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/normlinear"
)

// Inputs are the tensors of a call, row-major; Residual and Bias are nil if the problem has none.
type Inputs struct{ X, Residual, NormW, W, Bias []float64 }

// Outputs are the results: Y (rows, out), each element with its largest error, and Sum (rows, in), which is exact.
type Outputs struct{ Y, Bounds, Sum []float64 }

// relative is the error of a normalized element by its size: two roundings of products, half of a division's 2.5 units,
// an addition, and 2 units of a root.
const relative = 12 * tolerance.Roundoff32

// Forward computes
//
//	s      = round(x + residual)
//	v[r,j] = sum over i of s[r,i] * normW[i] * w[j,i] / sqrt(mean(s[r,:]²) + eps) + bias[j]
//	y      = v, or with GLU a(v[r,j]) * v[r,out+j]
//
// in float64, but for the stored s.
func Forward(in Inputs, p normlinear.Problem) Outputs {
	rows := norms.Forward(norms.Inputs{X: in.X, Residual: in.Residual, W: in.NormW},
		norm.Problem{Rows: p.Rows, Cols: p.In, RMS: true, Eps: p.Eps, DType: p.DType, WeightDType: dtype.Float32, Residual: p.Residual})
	n := p.WRows()
	of := problem.Problem{M: p.Rows, N: n, K: p.In, TransB: true, Bias: p.Bias} // of float32
	product := gemm.Inputs{A: rows.Y, B: in.W, Bias: in.Bias}
	v, rel := gemm.Multiply(product, of).C, relative+math.Sqrt(float64(p.In))*tolerance.Roundoff32
	off := gemm.Spread(product, scaled(rows.Y, rel), nil, of)
	number := func(r, j int) tolerance.Float {
		x := tolerance.Float{X: v[r*n+j], Off: off[r*n+j]}
		if p.Bias {
			x.Off += rel*math.Abs(x.X-in.Bias[j]) + tolerance.Roundoff32*math.Abs(x.X)
		} else {
			x.Off += rel * math.Abs(x.X)
		}
		return x
	}
	out := Outputs{Sum: rows.Sum}
	for r := range p.Rows {
		for j := range p.Out {
			y := number(r, j)
			if p.GLU {
				const steepest = 1.13 // of all activations
				a, _ := glus.Bounded(p.Activation, y.X)
				a.Off += steepest * y.Off
				y = a.Times(number(r, p.Out+j))
			}
			out.Y = append(out.Y, y.X)
			out.Bounds = append(out.Bounds, y.Off+tolerance.Stored(p.YDType(), math.Abs(y.X)+y.Off))
		}
	}
	return out
}

func scaled(x []float64, by float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * by
	}
	return y
}
