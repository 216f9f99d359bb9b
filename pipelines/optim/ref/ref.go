// Package ref computes steps of AdamW in float64, and as a plain program in float32
// does. It uses no device.
package ref

import (
	"fmt"
	"math"
)

// Hyper are the constants of AdamW. The learning rate is not among them: it changes
// from step to step.
type Hyper struct {
	Beta1, Beta2 float64 // in [0, 1)
	Eps          float64 // positive
	WeightDecay  float64 // not negative
	// MaxNorm clips gradients: where the norm of all of them is larger they are
	// multiplied by MaxNorm/norm. 0 is no clipping, and the norm is not computed;
	// +Inf computes the norm, clips nothing, and skips a step with a gradient that is
	// not finite, as every positive MaxNorm does.
	MaxNorm float64
}

// Default returns the constants that PyTorch has by default.
func Default() Hyper { return Hyper{Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01} }

// Validate returns an error that names the first constant that is out of its range.
func (h Hyper) Validate() error {
	in := func(x, least, most float64) bool { return x >= least && x < most } // false for NaN
	switch {
	case !in(h.Beta1, 0, 1):
		return fmt.Errorf("optim: beta1=%g is not in [0, 1)", h.Beta1)
	case !in(h.Beta2, 0, 1):
		return fmt.Errorf("optim: beta2=%g is not in [0, 1)", h.Beta2)
	case !in(h.Eps, 0x1p-126, math.MaxFloat32):
		return fmt.Errorf("optim: eps=%g is not a positive float32", h.Eps)
	case !in(h.WeightDecay, 0, math.MaxFloat32):
		return fmt.Errorf("optim: weight_decay=%g is not a finite number from 0 on", h.WeightDecay)
	case !(h.MaxNorm >= 0):
		return fmt.Errorf("optim: max_norm=%g is negative", h.MaxNorm)
	}
	return nil
}

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
func (h Hyper) Scale(norm float64) float64 {
	if h.MaxNorm > 0 && norm > h.MaxNorm {
		return h.MaxNorm / norm
	}
	return 1
}

// Step returns p after step number t, counted from 1, with the gradients grad times
// scale and the learning rate lr:
//
//	g     = grad * scale
//	m     = beta1 * m + (1 - beta1) * g
//	v     = beta2 * v + (1 - beta2) * g²
//	param = param * (1 - lr * weight_decay) - lr * (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
//
// The algorithm is Algorithm 2 of Loshchilov and Hutter, Decoupled Weight Decay
// Regularization (arXiv:1711.05101), with the decay scaled by lr as in PyTorch.
func (h Hyper) Step(p Param, grad []float64, scale, lr float64, t int) Param {
	return h.step(p, grad, scale, lr, t, func(x float64) float64 { return x })
}

// PlainStep is Step with every operation rounded to float32.
func (h Hyper) PlainStep(p Param, grad []float64, scale, lr float64, t int) Param {
	return h.step(p, grad, scale, lr, t, func(x float64) float64 { return float64(float32(x)) })
}

func (h Hyper) step(p Param, grad []float64, scale, lr float64, t int, round func(float64) float64) Param {
	n := len(p.Param)
	out := Param{Param: make([]float64, n), M: make([]float64, n), V: make([]float64, n), NoDecay: p.NoDecay}
	keep := 1.0
	if !p.NoDecay {
		keep = round(1 - round(lr*h.WeightDecay))
	}
	size := round(lr / round(1-math.Pow(h.Beta1, float64(t))))
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
