// Package ref computes a two-layer perceptron and its gradients in float64, and as a
// plain program does: what kernels are compared with, and how far they may be off.
//
// Tensors are slices in row-major order of the shapes of package problem.
package ref

import (
	gemmproblem "github.com/flashvk/flashvk/pipelines/gemm/problem"
	gemm "github.com/flashvk/flashvk/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/pipelines/mlp/problem"
	"github.com/flashvk/flashvk/pipelines/tolerance"
)

// Inputs are what a problem reads; DY is nil for the forward pass alone. Pre, if there is one,
// is what the backward pass takes for pre, whatever x * W1 is.
type Inputs struct{ X, W1, W2, DY, Pre []float64 }

// Outputs are what the forward pass writes, and what Backward adds.
type Outputs struct {
	Pre, Hidden, Y []float64 // Hidden is silu(pre)
	DPre           []float64
	DX, DW1, DW2   []float64
}

// A multiply computes a matrix product with its epilogue.
type multiply func(gemm.Inputs, gemmproblem.Problem) gemm.Outputs

// Compute returns the outputs in float64 throughout: the gradients too if there is DY.
func Compute(in Inputs, p problem.Problem) Outputs { return compute(in, p, gemm.Multiply) }

// Plain returns what a plain program computes: products with sums in float32, and every
// tensor between them rounded to its format.
func Plain(in Inputs, p problem.Problem) Outputs { return compute(in, p, gemm.Plain) }

func compute(in Inputs, p problem.Problem, f multiply) (out Outputs) {
	first := f(gemm.Inputs{A: in.X, B: in.W1}, gemmproblem.Problem{
		M: p.Tokens, N: p.Hidden, K: p.In, Activation: gemmproblem.SiLUKeep, DType: p.DType, Out: p.DType,
	})
	out.Pre, out.Hidden = first.X, first.C
	out.Y = f(gemm.Inputs{A: first.C, B: in.W2}, gemmproblem.Problem{M: p.Tokens, N: p.Out, K: p.Hidden, DType: p.DType, Out: p.DType}).C
	if in.DY == nil {
		return out
	}
	pre := out.Pre
	if in.Pre != nil {
		pre = in.Pre
	}
	gradient := f(gemm.Inputs{A: in.DY, B: in.W2, X: pre}, gemmproblem.Problem{
		M: p.Tokens, N: p.Hidden, K: p.Out, TransB: true, Activation: gemmproblem.TimesDSiLUKeep, DType: p.DType, Out: p.DType,
	})
	dpre, hidden := gradient.C, gradient.S
	out.DPre = dpre
	out.DX = f(gemm.Inputs{A: dpre, B: in.W1}, gemmproblem.Problem{M: p.Tokens, N: p.In, K: p.Hidden, TransB: true, DType: p.DType, Out: p.DType}).C
	out.DW1 = f(gemm.Inputs{A: in.X, B: dpre}, gemmproblem.Problem{M: p.In, N: p.Hidden, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}).C
	out.DW2 = f(gemm.Inputs{A: hidden, B: in.DY}, gemmproblem.Problem{M: p.Hidden, N: p.Out, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}).C
	return out
}

// Bounds are how far outputs may be off, every element.
type Bounds struct{ Pre, Hidden, Y, DPre, DX, DW1, DW2 float64 }

// NewBounds returns those of a kernel, given the outputs of Compute and Plain.
func NewBounds(want, plain Outputs, p problem.Problem) Bounds {
	return BoundsAtLeast(want, plain, Outputs{}, p)
}

// BoundsAtLeast is NewBounds where outputs may be so few that plain is right by luck: the
// largest of what Spread returns counts as its error at the least.
func BoundsAtLeast(want, plain, spread Outputs, p problem.Problem) Bounds {
	return Bounds{
		Pre:    tolerance.Plain(p.DType, want.Pre, plain.Pre, tolerance.Largest(spread.Pre)),
		Hidden: tolerance.Plain(p.DType, want.Hidden, plain.Hidden, tolerance.Largest(spread.Hidden)),
		Y:      tolerance.Plain(p.DType, want.Y, plain.Y, tolerance.Largest(spread.Y)),
		DPre:   tolerance.Plain(p.DType, want.DPre, plain.DPre, tolerance.Largest(spread.DPre)),
		DX:     tolerance.Plain(p.DType, want.DX, plain.DX, tolerance.Largest(spread.DX)),
		DW1:    tolerance.Plain(p.Grad, want.DW1, plain.DW1, tolerance.Largest(spread.DW1)),
		DW2:    tolerance.Plain(p.Grad, want.DW2, plain.DW2, tolerance.Largest(spread.DW2)),
	}
}

// Tokens returns the problem of some tokens, whose pre, y and dx are those of all.
func Tokens(rows []int, in Inputs, p problem.Problem) (problem.Problem, Inputs) {
	part := p
	part.Tokens = len(rows)
	return part, Inputs{X: pickRows(in.X, rows, p.In), W1: in.W1, W2: in.W2, DY: pickRows(in.DY, rows, p.Out), Pre: pickRows(in.Pre, rows, p.Hidden)}
}

// Units returns the problem of some hidden units, whose columns of dW1 and rows of dW2
// are those of all.
func Units(units []int, in Inputs, p problem.Problem) (problem.Problem, Inputs) {
	part := p
	part.Hidden = len(units)
	return part, Inputs{
		X: in.X, W1: pickColumns(in.W1, units, p.Hidden), W2: pickRows(in.W2, units, p.Out), DY: in.DY,
		Pre: pickColumns(in.Pre, units, p.Hidden),
	}
}

// pickRows returns some rows of a matrix; nil of nil.
func pickRows(data []float64, rows []int, cols int) []float64 {
	if data == nil {
		return nil
	}
	out := make([]float64, 0, len(rows)*cols)
	for _, r := range rows {
		out = append(out, data[r*cols:(r+1)*cols]...)
	}
	return out
}

// pickColumns returns some columns of a matrix; nil of nil.
func pickColumns(data []float64, columns []int, cols int) (out []float64) {
	for ; len(data) > 0; data = data[cols:] {
		out = append(out, pickRows(data[:cols], columns, 1)...)
	}
	return out
}
