package ref

import (
	"math"

	gemmproblem "github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	gemm "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// Spread returns how far every element of the outputs may be off if tensors between products are
// rounded to p.DType, with errors of random signs: their first order, through products and
// activations. OffDY is how far elements of DY may be off, nil for not at all.
//
// A kernel that rounds elsewhere than the plain program is off by as much, though not by the
// same; where outputs are many, the largest error of Plain is about twice this.
func Spread(in Inputs, offDY []float64, p mlp.Problem) (off Outputs) {
	for k := range heads(p) {
		one := head(in, p, k)
		out := perceptron(one, p, gemm.Multiply)
		x := spread(one, out, ofHead(offDY, p, k, p.Out), p)
		off.add(&x, p, k)
		if off.DX == nil {
			off.DX = make([]float64, len(x.DX))
		}
		for i, v := range x.DX {
			if p.Heads > 0 { // kernels round dx of some heads at a time
				v += tolerance.Stored(p.DType, out.DX[i])
			}
			off.DX[i] = math.Hypot(off.DX[i], v)
		}
	}
	return off
}

// spread is Spread of a head.
func spread(in Inputs, want Outputs, offDY []float64, p mlp.Problem) (off Outputs) {
	product := func(m, n, k int, transA, transB bool, a, b, offA, offB []float64) []float64 {
		return gemm.Spread(gemm.Inputs{A: a, B: b}, offA, offB, gemmproblem.Problem{M: m, N: n, K: k, TransA: transA, TransB: transB, DType: p.DType})
	}
	store := func(off, x []float64) {
		for i := range off {
			off[i] += tolerance.Stored(p.DType, x[i])
		}
	}
	off.Pre = product(p.Tokens, p.Hidden, p.In, false, false, in.X, in.W1, nil, nil)
	store(off.Pre, want.Pre)
	off.Hidden = make([]float64, len(off.Pre))
	for i, v := range want.Pre {
		off.Hidden[i] = math.Abs(gemm.DSiLU(v))*off.Pre[i] + roundoff(v)
	}
	store(off.Hidden, want.Hidden)
	off.Y = product(p.Tokens, p.Out, p.Hidden, false, false, want.Hidden, in.W2, off.Hidden, nil)
	store(off.Y, want.Y)
	if in.DY == nil {
		return off
	}
	pre, offPre, hidden, offHidden := want.Pre, off.Pre, want.Hidden, off.Hidden
	if in.Pre != nil {
		pre, offPre, hidden, offHidden = in.Pre, make([]float64, len(in.Pre)), make([]float64, len(in.Pre)), make([]float64, len(in.Pre))
		for i, v := range pre {
			hidden[i] = gemm.SiLU(v)
			offHidden[i] = roundoff(v)
		}
		store(offHidden, hidden)
	}
	g := gemm.Multiply(gemm.Inputs{A: in.DY, B: in.W2}, gemmproblem.Problem{M: p.Tokens, N: p.Hidden, K: p.Out, TransB: true, DType: p.DType}).C
	offG := product(p.Tokens, p.Hidden, p.Out, false, true, in.DY, in.W2, offDY, nil)
	dpre, offDPre := make([]float64, len(g)), make([]float64, len(g))
	for i, v := range pre {
		d, s := gemm.DSiLU(v), 1/(1+math.Exp(-v))
		second := s * (1 - s) * (2 + v*(1-2*s)) // the second derivative of silu
		dpre[i] = g[i] * d
		offDPre[i] = math.Abs(d)*offG[i] + math.Abs(g[i])*(math.Abs(second)*offPre[i]+2*tolerance.Roundoff32*(1+math.Abs(v)))
	}
	store(offDPre, dpre)
	off.DPre = offDPre
	off.DX = product(p.Tokens, p.In, p.Hidden, false, true, dpre, in.W1, offDPre, nil)
	off.DW1 = product(p.In, p.Hidden, p.Tokens, true, false, in.X, dpre, nil, offDPre)
	off.DW2 = product(p.Hidden, p.Out, p.Tokens, true, false, hidden, in.DY, offHidden, offDY)
	return off
}

// roundoff is about the roundoff of silu in float32.
func roundoff(v float64) float64 {
	s := 1 / (1 + math.Exp(-v))
	return tolerance.Roundoff32 * math.Abs(v) * s * (2 + 2*(1-s)*math.Abs(v))
}
