// Package ref computes steps of AdamW in float64, and as a plain program in float32
// does. It uses no device.
package ref

import (
	"math"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
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

// Bounds are how far a kernel may be off after a step, every element of a tensor.
type Bounds struct{ Param, M, V, Copy float64 }

// NewBounds returns the bounds of a kernel by the rule of tolerance.Plain, given the results of
// Step and PlainStep on before; copyTo is the format of the copy. Where a tensor has so few
// elements that plain is right by luck, the roundoff of terms that cancel counts, and the roundoff
// of a device's functions: a square root, its inverse and a division may be off by some units in
// the last place, exp(x) by 3 + 2|x| (Vulkan specification). NewBounds counts half of these units,
// as tolerance.Plain allows four times as much.
func NewBounds(h optim.Problem, before Param, grad []float64, scale float64, t int, want, plain Param, copyTo dtype.DType) Bounds {
	ofGrad := 1.0
	if scale != 1 {
		ofGrad = 4 // the norm's square root, and a division
	}
	ofUpdate := 5 + ofGrad + correction(h.Beta1, t) + correction(h.Beta2, t)
	var param, m, v float64
	for i, x := range before.Param {
		g := math.Abs(grad[i]) * scale
		keep := x
		if !before.NoDecay {
			keep *= 1 - h.LR*h.WeightDecay
		}
		param = max(param, 2*math.Abs(keep)+ofUpdate*math.Abs(keep-want.Param[i]))
		m = max(m, h.Beta1*math.Abs(before.M[i])+ofGrad*(1-h.Beta1)*g)
		v = max(v, h.Beta2*before.V[i]+2*ofGrad*(1-h.Beta2)*g*g)
	}
	const unit = tolerance.Roundoff32
	b := Bounds{
		Param: tolerance.Plain(dtype.Float32, want.Param, plain.Param, unit*param),
		M:     tolerance.Plain(dtype.Float32, want.M, plain.M, unit*m),
		V:     tolerance.Plain(dtype.Float32, want.V, plain.V, unit*v),
	}
	if copyTo != dtype.Float32 {
		rounded := make([]float64, len(plain.Param))
		for i, x := range plain.Param {
			rounded[i] = float64(copyTo.Round(float32(x)))
		}
		b.Copy = tolerance.Plain(copyTo, Copy(want.Param, copyTo), rounded, unit*param)
	}
	return b
}

// Copy returns the copy of parameters in a format, before rounding: parameters beyond the format
// are infinite.
func Copy(param []float64, t dtype.DType) []float64 {
	out := slices.Clone(param)
	for i, x := range out {
		if y := float64(t.Round(float32(x))); math.IsInf(y, 0) {
			out[i] = y
		}
	}
	return out
}

// correction returns the error of 1 - beta^t, as adamw_prepare.comp computes it, in units of
// tolerance.Roundoff32.
func correction(beta float64, t int) float64 {
	x := float64(t) * math.Log(beta)
	if x >= -0.5 { // a polynomial
		return 3
	}
	e := math.Exp(x)
	if e == 0 { // beta may be 0, and x infinite
		return 1
	}
	return e*(3+3*math.Abs(x))/(1-e) + 1
}
