// Package ref computes two-layer perceptrons that share their input, and their gradients, in
// float64, and as a plain program does: the results that kernels are compared with, and how far
// kernels may be off. Each head is computed by itself.
//
// Tensors are slices in row-major order of the shapes of mlp.Problem.
package ref

import (
	gemmproblem "github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	gemm "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// Inputs are the tensors that a problem reads; DY is nil for the forward pass alone. The backward
// pass takes Pre, if there is one, for pre, whatever x * W1 is.
type Inputs struct{ X, W1, W2, DY, Pre []float64 }

// Outputs are the results of the forward pass, and the results that Backward adds.
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

// Plain returns the outputs of a plain program: products with sums in float32, every tensor between
// products rounded to its format, dx of each head among them, and the sum of these dx in float32.
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

// NewBounds returns the bounds of a kernel, given the outputs of Compute and Plain. Outputs may be so few
// that plain is right by luck: the largest number of Spread counts as plain's error at the least.
func NewBounds(want, plain, spread Outputs, p mlp.Problem) Bounds {
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

// heads returns how many perceptrons there are.
func heads(p mlp.Problem) int { return max(p.Heads, 1) }

func head(in Inputs, p mlp.Problem, k int) Inputs {
	first, second := p.In*p.Hidden, p.Hidden*p.Out
	return Inputs{
		X: in.X, W1: in.W1[k*first : (k+1)*first], W2: in.W2[k*second : (k+1)*second],
		DY: ofHead(in.DY, p, k, p.Out), Pre: ofHead(in.Pre, p, k, p.Hidden),
	}
}

// ofHead returns head k of a tensor (tokens, heads, columns); nil of nil.
func ofHead(data []float64, p mlp.Problem, k, columns int) (one []float64) {
	if data == nil {
		return nil
	}
	for t := range p.Tokens {
		one = append(one, data[(t*heads(p)+k)*columns:][:columns]...)
	}
	return one
}

// add adds the outputs of head k, but dx.
func (out *Outputs) add(one *Outputs, p mlp.Problem, k int) {
	for _, x := range []struct {
		to      *[]float64
		from    []float64
		columns int
	}{{&out.Pre, one.Pre, p.Hidden}, {&out.Hidden, one.Hidden, p.Hidden}, {&out.Y, one.Y, p.Out}, {&out.DPre, one.DPre, p.Hidden}} {
		if *x.to == nil && x.from != nil {
			*x.to = make([]float64, heads(p)*len(x.from))
		}
		for t := 0; t*x.columns < len(x.from); t++ {
			copy((*x.to)[(t*heads(p)+k)*x.columns:], x.from[t*x.columns:(t+1)*x.columns])
		}
	}
	out.DW1, out.DW2 = append(out.DW1, one.DW1...), append(out.DW2, one.DW2...)
}

type multiply func(gemm.Inputs, gemmproblem.Problem) gemm.Outputs

// perceptron computes a head.
func perceptron(in Inputs, p mlp.Problem, f multiply) (out Outputs) {
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
	out.DW1 = f(gemm.Inputs{A: in.X, B: dpre}, gemmproblem.Problem{M: p.In, N: p.Hidden, K: p.Tokens, TransA: true, DType: p.DType, Out: p.GradDType()}).C
	out.DW2 = f(gemm.Inputs{A: hidden, B: in.DY}, gemmproblem.Problem{M: p.Hidden, N: p.Out, K: p.Tokens, TransA: true, DType: p.DType, Out: p.GradDType()}).C
	return out
}

// Tokens returns the problem of some tokens, with the same pre, y and dx as in the whole problem.
func Tokens(rows []int, in Inputs, p mlp.Problem) (mlp.Problem, Inputs) {
	part := p
	part.Tokens = len(rows)
	return part, Inputs{
		X: pickRows(in.X, rows, p.In), W1: in.W1, W2: in.W2,
		DY: pickRows(in.DY, rows, heads(p)*p.Out), Pre: pickRows(in.Pre, rows, heads(p)*p.Hidden),
	}
}

// Units returns the problem of some hidden units of every head, with the same columns of dW1 and
// rows of dW2 as in the whole problem.
func Units(units []int, in Inputs, p mlp.Problem) (mlp.Problem, Inputs) {
	part := p
	part.Hidden = len(units)
	out := Inputs{
		X: in.X, DY: in.DY,
		W1: pickColumns(in.W1, units, p.Hidden), Pre: pickColumns(in.Pre, units, p.Hidden),
	}
	for k := range heads(p) {
		out.W2 = append(out.W2, pickRows(in.W2[k*p.Hidden*p.Out:], units, p.Out)...)
	}
	return part, out
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
