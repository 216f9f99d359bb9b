package ref

import (
	gemmproblem "github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	gemm "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// heads returns how many perceptrons there are.
func heads(p mlp.Problem) int { return max(p.Heads, 1) }

// head returns the inputs of head k.
func head(in Inputs, p mlp.Problem, k int) Inputs {
	first, second := p.In*p.Hidden, p.Hidden*p.Out
	return Inputs{
		X: in.X, W1: in.W1[k*first : (k+1)*first], W2: in.W2[k*second : (k+1)*second],
		DY: ofHead(in.DY, p, k, p.Out), Pre: ofHead(in.Pre, p, k, p.Hidden),
	}
}

// ofHead returns what a tensor (tokens, heads, columns) has of head k; nil of nil.
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

// A multiply computes a matrix product with its epilogue.
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
