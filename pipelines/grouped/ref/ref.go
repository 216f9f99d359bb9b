// Package ref computes perceptrons that share their input, and their gradients, in
// float64, and as a plain program does: what kernels are compared with, and how far they
// may be off. Each head is one of package mlp/ref.
//
// Tensors are slices in row-major order of the shapes of package problem.
package ref

import (
	"math"

	"github.com/flashvk/flashvk/pipelines/grouped/problem"
	mlpproblem "github.com/flashvk/flashvk/pipelines/mlp/problem"
	mlp "github.com/flashvk/flashvk/pipelines/mlp/ref"
	"github.com/flashvk/flashvk/pipelines/tolerance"
)

// Inputs are what a problem reads; DY is nil for the forward pass alone. Pre, if there is one,
// is what the backward pass takes for pre, whatever x * W1 is.
type Inputs struct{ X, W1, W2, DY, Pre []float64 }

// Outputs are what the forward pass writes, and what Backward adds.
type Outputs struct{ Pre, Y, DPre, DX, DW1, DW2 []float64 }

// Compute returns the outputs in float64 throughout: the gradients too if there is DY.
func Compute(in Inputs, p problem.Problem) Outputs {
	return compute(in, p, mlp.Compute, func(v float64) float64 { return v }, func(v float64) float64 { return v })
}

// Plain returns what a plain program computes: products with sums in float32, every
// tensor between them rounded to its format, dx of each head among them, and the sum of
// those in float32.
func Plain(in Inputs, p problem.Problem) Outputs {
	return compute(in, p, mlp.Plain,
		func(v float64) float64 { return float64(float32(v)) },
		func(v float64) float64 { return float64(p.DType.Round(float32(v))) })
}

// compute computes each head by f. Sum rounds a sum of dx, and store what dx holds at
// last.
func compute(in Inputs, p problem.Problem, f func(mlp.Inputs, mlpproblem.Problem) mlp.Outputs, sum, store func(float64) float64) (out Outputs) {
	out.Y, out.Pre = make([]float64, p.Tokens*p.Heads*p.Out), make([]float64, p.Tokens*p.Heads*p.Hidden)
	if in.DY != nil {
		out.DX, out.DPre = make([]float64, p.Tokens*p.In), make([]float64, len(out.Pre))
	}
	for k := range p.Heads {
		one := f(head(in, p, k), headProblem(p))
		for t := range p.Tokens {
			copy(out.Y[(t*p.Heads+k)*p.Out:], one.Y[t*p.Out:(t+1)*p.Out])
			copy(out.Pre[(t*p.Heads+k)*p.Hidden:], one.Pre[t*p.Hidden:(t+1)*p.Hidden])
			if in.DY != nil {
				copy(out.DPre[(t*p.Heads+k)*p.Hidden:], one.DPre[t*p.Hidden:(t+1)*p.Hidden])
			}
		}
		for i, v := range one.DX {
			out.DX[i] = sum(out.DX[i] + v)
		}
		out.DW1, out.DW2 = append(out.DW1, one.DW1...), append(out.DW2, one.DW2...)
	}
	for i, v := range out.DX {
		out.DX[i] = store(v)
	}
	return out
}

// headProblem returns the problem of one head.
func headProblem(p problem.Problem) mlpproblem.Problem {
	return mlpproblem.Problem{Tokens: p.Tokens, In: p.In, Hidden: p.Hidden, Out: p.Out, DType: p.DType, Grad: p.Grad}
}

// head returns the inputs of head k.
func head(in Inputs, p problem.Problem, k int) mlp.Inputs {
	first, second := p.In*p.Hidden, p.Hidden*p.Out
	one := mlp.Inputs{X: in.X, W1: in.W1[k*first : (k+1)*first], W2: in.W2[k*second : (k+1)*second]}
	one.DY, one.Pre = ofHead(in.DY, p, k, p.Out), ofHead(in.Pre, p, k, p.Hidden)
	return one
}

// ofHead returns what a tensor (tokens, heads, columns) has of head k; nil of nil.
func ofHead(data []float64, p problem.Problem, k, columns int) (one []float64) {
	if data == nil {
		return nil
	}
	for t := range p.Tokens {
		one = append(one, data[(t*p.Heads+k)*columns:][:columns]...)
	}
	return one
}

// Bounds are how far outputs may be off, every element.
type Bounds struct{ Pre, Y, DPre, DX, DW1, DW2 float64 }

// NewBounds returns those of a kernel, given the outputs of Compute and Plain.
func NewBounds(want, plain Outputs, p problem.Problem) Bounds {
	return BoundsAtLeast(want, plain, Outputs{}, p)
}

// BoundsAtLeast is NewBounds where outputs may be so few that plain is right by luck: the
// largest of what Spread returns counts as its error at the least.
func BoundsAtLeast(want, plain, spread Outputs, p problem.Problem) Bounds {
	return Bounds{
		Pre:  tolerance.Plain(p.DType, want.Pre, plain.Pre, tolerance.Largest(spread.Pre)),
		Y:    tolerance.Plain(p.DType, want.Y, plain.Y, tolerance.Largest(spread.Y)),
		DPre: tolerance.Plain(p.DType, want.DPre, plain.DPre, tolerance.Largest(spread.DPre)),
		DX:   tolerance.Plain(p.DType, want.DX, plain.DX, tolerance.Largest(spread.DX)),
		DW1:  tolerance.Plain(p.Grad, want.DW1, plain.DW1, tolerance.Largest(spread.DW1)),
		DW2:  tolerance.Plain(p.Grad, want.DW2, plain.DW2, tolerance.Largest(spread.DW2)),
	}
}

// Spread returns how far every element of the outputs may be off, as mlp/ref says. Kernels
// round dx of some heads at a time.
func Spread(in Inputs, want Outputs, offDY []float64, p problem.Problem) (off Outputs) {
	off.Y, off.Pre = make([]float64, len(want.Y)), make([]float64, len(want.Pre))
	if in.DY != nil {
		off.DX, off.DPre = make([]float64, p.Tokens*p.In), make([]float64, len(want.Pre))
	}
	for k := range p.Heads {
		one := head(in, p, k)
		out := mlp.Compute(one, headProblem(p))
		x := mlp.Spread(one, out, ofHead(offDY, p, k, p.Out), headProblem(p))
		for t := range p.Tokens {
			copy(off.Y[(t*p.Heads+k)*p.Out:], x.Y[t*p.Out:(t+1)*p.Out])
			copy(off.Pre[(t*p.Heads+k)*p.Hidden:], x.Pre[t*p.Hidden:(t+1)*p.Hidden])
			if in.DY != nil {
				copy(off.DPre[(t*p.Heads+k)*p.Hidden:], x.DPre[t*p.Hidden:(t+1)*p.Hidden])
			}
		}
		for i, v := range x.DX {
			v += tolerance.Stored(p.DType, out.DX[i])
			off.DX[i] = math.Hypot(off.DX[i], v)
		}
		off.DW1, off.DW2 = append(off.DW1, x.DW1...), append(off.DW2, x.DW2...)
	}
	return off
}

// Tokens returns the problem of some tokens, whose pre, y and dx are those of all.
func Tokens(rows []int, in Inputs, p problem.Problem) (problem.Problem, Inputs) {
	part := p
	part.Tokens = len(rows)
	// Rows of x, dy and pre are all that one perceptron with those of all heads has.
	_, some := mlp.Tokens(rows, mlp.Inputs{X: in.X, DY: in.DY, Pre: in.Pre}, mlpproblem.Problem{In: p.In, Hidden: p.Heads * p.Hidden, Out: p.Heads * p.Out})
	return part, Inputs{X: some.X, W1: in.W1, W2: in.W2, DY: some.DY, Pre: some.Pre}
}

// Units returns the problem of some hidden units of every head, whose columns of dW1 and
// rows of dW2 are those of all.
func Units(units []int, in Inputs, p problem.Problem) (problem.Problem, Inputs) {
	part := p
	part.Hidden = len(units)
	out := Inputs{X: in.X, DY: in.DY}
	if in.Pre != nil {
		out.Pre = make([]float64, p.Tokens*p.Heads*part.Hidden)
	}
	for k := range p.Heads {
		_, one := mlp.Units(units, head(in, p, k), headProblem(p))
		out.W1, out.W2 = append(out.W1, one.W1...), append(out.W2, one.W2...)
		for i, v := range one.Pre {
			out.Pre[(i/part.Hidden*p.Heads+k)*part.Hidden+i%part.Hidden] = v
		}
	}
	return part, out
}
