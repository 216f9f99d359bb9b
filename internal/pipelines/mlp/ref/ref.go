// Package ref computes two-layer perceptrons that share their input, and their gradients, in
// float64, and as a plain program does: what kernels are compared with, and how far they may be
// off. Each head is computed by itself (head.go).
//
// Tensors are slices in row-major order of the shapes of mlp.Problem.
package ref

import (
	gemm "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// Inputs are what a problem reads; DY is nil for the forward pass alone. Pre, if there is one,
// is what the backward pass takes for pre, whatever x * W1 is.
type Inputs struct{ X, W1, W2, DY, Pre []float64 }

// Outputs are the results of the forward pass, and those that Backward adds.
type Outputs struct {
	Pre, Hidden, Y []float64 // Hidden is silu(pre)
	DPre           []float64
	DX, DW1, DW2   []float64
}

// Compute returns the outputs in float64 throughout: the gradients too if there is DY.
func Compute(in Inputs, p mlp.Problem) Outputs {
	exact := func(v float64) float64 { return v }
	return compute(in, p, gemm.Multiply, exact, exact)
}

// Plain returns what a plain program computes: products with sums in float32, every
// tensor between them rounded to its format, dx of each head among them, and the sum of
// those in float32.
func Plain(in Inputs, p mlp.Problem) Outputs {
	return compute(in, p, gemm.Plain,
		func(v float64) float64 { return float64(float32(v)) },
		func(v float64) float64 { return float64(p.DType.Round(float32(v))) })
}

// compute computes each head by products of f. Sum rounds a sum of dx, and store what dx holds at
// last.
func compute(in Inputs, p mlp.Problem, f multiply, sum, store func(float64) float64) (out Outputs) {
	for k := range heads(p) {
		one := perceptron(head(in, p, k), p, f)
		out.add(&one, p, k)
		if out.DX == nil && one.DX != nil {
			out.DX = make([]float64, len(one.DX))
		}
		for i, v := range one.DX {
			out.DX[i] = sum(out.DX[i] + v)
		}
	}
	for i, v := range out.DX {
		out.DX[i] = store(v)
	}
	return out
}

// Bounds are how far outputs may be off, every element.
type Bounds struct{ Pre, Hidden, Y, DPre, DX, DW1, DW2 float64 }

// NewBounds returns those of a kernel, given the outputs of Compute and Plain.
func NewBounds(want, plain Outputs, p mlp.Problem) Bounds {
	return BoundsAtLeast(want, plain, Outputs{}, p)
}

// BoundsAtLeast is NewBounds where outputs may be so few that plain is right by luck: the
// largest of what Spread returns counts as its error at the least.
func BoundsAtLeast(want, plain, spread Outputs, p mlp.Problem) Bounds {
	return Bounds{
		Pre:    tolerance.Plain(p.DType, want.Pre, plain.Pre, tolerance.Largest(spread.Pre)),
		Hidden: tolerance.Plain(p.DType, want.Hidden, plain.Hidden, tolerance.Largest(spread.Hidden)),
		Y:      tolerance.Plain(p.DType, want.Y, plain.Y, tolerance.Largest(spread.Y)),
		DPre:   tolerance.Plain(p.DType, want.DPre, plain.DPre, tolerance.Largest(spread.DPre)),
		DX:     tolerance.Plain(p.DType, want.DX, plain.DX, tolerance.Largest(spread.DX)),
		DW1:    tolerance.Plain(p.GradDType(), want.DW1, plain.DW1, tolerance.Largest(spread.DW1)),
		DW2:    tolerance.Plain(p.GradDType(), want.DW2, plain.DW2, tolerance.Largest(spread.DW2)),
	}
}
