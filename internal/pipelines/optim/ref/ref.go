// Package ref computes steps of AdamW in float64, and as a plain program in float32
// does. It uses no device.
package ref

import (
	"math"

	"github.com/flashvk/flashvk/pipelines/optim"
)

// A Param is a tensor of parameters with its moments.
type Param struct {
	Param, M, V []float64
	NoDecay     bool // the weight decay is not for it
}

// Norm returns the Euclidean norm of all gradients.
func Norm(grads ...[]float64) float64 {
	sum := 0.0
	for _, g := range grads {
		for _, x := range g {
			sum += x * x
		}
	}
	return math.Sqrt(sum)
}

// Scale returns the factor of the gradients, whose norm is given.
func Scale(h optim.Problem, norm float64) float64 {
	if h.MaxNorm > 0 && norm > h.MaxNorm {
		return h.MaxNorm / norm
	}
	return 1
}

// Step returns p after step number t, counted from 1, with the gradients grad times
// scale and the learning rate h.LR:
//
//	g     = grad * scale
//	m     = beta1 * m + (1 - beta1) * g
//	v     = beta2 * v + (1 - beta2) * g²
//	param = param * (1 - lr * weight_decay) - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// The algorithm is Algorithm 2 of Loshchilov and Hutter, Decoupled Weight Decay
// Regularization (arXiv:1711.05101), with the decay scaled by lr as in PyTorch.
func Step(h optim.Problem, p Param, grad []float64, scale float64, t int) Param {
	return step(h, p, grad, scale, t, func(x float64) float64 { return x })
}

// PlainStep is Step with every operation rounded to float32.
func PlainStep(h optim.Problem, p Param, grad []float64, scale float64, t int) Param {
	return step(h, p, grad, scale, t, func(x float64) float64 { return float64(float32(x)) })
}

func step(h optim.Problem, p Param, grad []float64, scale float64, t int, round func(float64) float64) Param {
	n := len(p.Param)
	out := Param{Param: make([]float64, n), M: make([]float64, n), V: make([]float64, n), NoDecay: p.NoDecay}
	keep := 1.0
	if !p.NoDecay {
		keep = round(1 - round(h.LR*h.WeightDecay))
	}
	size := round(h.LR / round(1-math.Pow(h.Beta1, float64(t))))
	vScale := round(1 / round(math.Sqrt(round(1-math.Pow(h.Beta2, float64(t))))))
	b1, b2, a1, a2 := round(h.Beta1), round(h.Beta2), round(1-h.Beta1), round(1-h.Beta2)
	scale = round(scale)
	for i, x := range p.Param {
		g := round(grad[i] * scale)
		m := round(round(b1*p.M[i]) + round(a1*g))
		v := round(round(b2*p.V[i]) + round(a2*round(g*g)))
		by := round(round(round(math.Sqrt(v))*vScale) + round(h.Eps))
		out.Param[i] = round(round(x*keep) - round(size*round(m/by)))
		out.M[i], out.V[i] = m, v
	}
	return out
}
