// Package ref computes the log-probability of tokens under mixtures of normal
// distributions, and its gradients, in float64, and as a plain program in float32
// does. It uses no device.
package ref

import (
	"math"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/gmm"
)

// Inputs are the tensors of a call, row-major: Logit, Mu and LogSigma (tokens,
// components), Y (tokens).
type Inputs struct{ Logit, Mu, LogSigma, Y []float64 }

// Gradients are the gradients of the loss by logit, mu and log_sigma.
type Gradients struct{ Logit, Mu, LogSigma []float64 }

// States returns the state of every component alone, (components, tokens, gmm.StateSize), as in
// shaders/lib/gmm.glsl: the input of gmm.Merge.
func States(in Inputs, p gmm.Problem) []float64 {
	x := make([]float64, p.Components*p.Tokens*gmm.StateSize)
	for t := range p.Tokens {
		for k := range p.Components {
			i := t*p.Components + k
			d := math.Abs(in.Y[t] - in.Mu[i])
			z := d * math.Exp(-in.LogSigma[i])
			q, distance := round32(0.5*z*z), 0.0
			if math.IsInf(q, 1) {
				distance = math.Log(d) - in.LogSigma[i]
			}
			state := x[(k*p.Tokens+t)*gmm.StateSize:]
			for j, v := range []float64{in.Logit[i], 1, 1, in.Logit[i], q, distance, in.LogSigma[i]} {
				state[j] = round32(v)
			}
		}
	}
	return x
}

const halfLog2Pi = 0.91893853320467274178 // log(2π) / 2

// Forward returns the log-probability of each token and minus their mean:
//
//	log_w = log_softmax(logit)
//	log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
//	log_p = logsumexp over components of log_w + log_n
//	loss  = -mean(log_p)
func Forward(in Inputs, p gmm.Problem) (logP []float64, loss float64) {
	return forward(in, p, func(x float64) float64 { return x })
}

// PlainForward is Forward with every operation rounded to float32.
func PlainForward(in Inputs, p gmm.Problem) (logP []float64, loss float64) {
	return forward(in, p, round32)
}

func round32(x float64) float64 { return float64(float32(x)) }

func forward(in Inputs, p gmm.Problem, round func(float64) float64) (logP []float64, loss float64) {
	logP = make([]float64, p.Tokens)
	for t := range logP {
		a, logW, least := mixture(in, p, t, round)
		for k := range a {
			a[k] = round(a[k] + logW[k])
		}
		logP[t] = round(logSumExp(a, round) - least)
		loss = round(loss - round(logP[t]/float64(p.Tokens)))
	}
	return logP, loss
}

// mixture returns log_n + least and log_w of a token, least being the smallest z²/2:
// where y is far from everything, the difference still tells the components apart.
func mixture(in Inputs, p gmm.Problem, t int, round func(float64) float64) (logN, logW []float64, least float64) {
	n := p.Components
	logit := in.Logit[t*n : (t+1)*n]
	sum := logSumExp(logit, round)
	logN, logW, least = make([]float64, n), make([]float64, n), math.Inf(1)
	for k := range n {
		z := deviation(in, p, t, k, round)
		logN[k] = round(0.5 * round(z*z))
		least = min(least, logN[k])
	}
	for k := range n {
		logN[k] = round(round(round(least-logN[k])-in.LogSigma[t*n+k]) - round(halfLog2Pi))
		logW[k] = round(logit[k] - sum)
	}
	return logN, logW, least
}

// deviation returns z: (y - mu) / sigma.
func deviation(in Inputs, p gmm.Problem, t, k int, round func(float64) float64) float64 {
	i := t*p.Components + k
	return round(round(in.Y[t]-in.Mu[i]) * round(math.Exp(-in.LogSigma[i])))
}

func logSumExp(x []float64, round func(float64) float64) float64 {
	most := slices.Max(x)
	sum := 0.0
	for _, v := range x {
		sum = round(sum + round(math.Exp(round(v-most))))
	}
	return round(most + round(math.Log(sum)))
}

// Backward returns the gradients of dloss times the loss: with r the part of each
// component in the probability of a token, w its weight, and g = -dloss / tokens,
//
//	dlogit     = g * (r - w)
//	dmu        = g * r * z / sigma
//	dlog_sigma = g * r * (z² - 1)
func Backward(in Inputs, dloss float64, p gmm.Problem) Gradients {
	return backward(in, dloss, p, func(x float64) float64 { return x })
}

// PlainBackward is Backward with every operation rounded to float32, and the gradients
// to p.GradDType().
func PlainBackward(in Inputs, dloss float64, p gmm.Problem) Gradients {
	g := backward(in, dloss, p, round32)
	for _, x := range [][]float64{g.Logit, g.Mu, g.LogSigma} {
		for i, v := range x {
			x[i] = float64(p.GradDType().Round(float32(v)))
		}
	}
	return g
}

func backward(in Inputs, dloss float64, p gmm.Problem, round func(float64) float64) Gradients {
	n := p.Components
	out := Gradients{make([]float64, len(in.Logit)), make([]float64, len(in.Logit)), make([]float64, len(in.Logit))}
	g := round(-dloss / float64(p.Tokens))
	for t := range p.Tokens {
		a, logW, _ := mixture(in, p, t, round)
		for k := range a {
			a[k] = round(a[k] + logW[k])
		}
		sum := logSumExp(a, round)
		for k := range n {
			i := t*n + k
			r, w := round(math.Exp(round(a[k]-sum))), round(math.Exp(logW[k]))
			z := deviation(in, p, t, k, round)
			out.Logit[i] = round(g * round(r-w))
			out.Mu[i] = round(round(g*r) * round(z*round(math.Exp(-in.LogSigma[i]))))
			out.LogSigma[i] = round(round(g*r) * round(round(z*z)-1))
		}
	}
	return out
}

// Bounds are the largest absolute errors of results.
type Bounds struct{ LogP, Loss, DLogit, DMu, DLogSigma float64 }

// least is the error of log_p that counts as plain's at the least. Its terms cancel, so it
// has the roundoff of the largest, log_sigma and a few others; and a device's exp(x) may
// be off by 3 + 2|x| units in the last place (Vulkan specification), twice the roundoff
// each: z²/2, which is no more than about log_p, has exp(log_sigma/2) in it four times.
// Tolerance.Plain allows four times as much.
func least(in Inputs, logP []float64) float64 {
	l := tolerance.Largest(in.LogSigma)
	return tolerance.Roundoff32 * (4 + l + 2*(3+l)*tolerance.Largest(logP))
}

// ForwardBounds returns how far a kernel may be off by the rule of tolerance.Plain,
// given what Forward and PlainForward compute.
func ForwardBounds(in Inputs, logP, plain []float64, loss, plainLoss float64) Bounds {
	return Bounds{
		LogP: tolerance.Plain(dtype.Float32, logP, plain, least(in, logP)),
		Loss: tolerance.Plain(dtype.Float32, []float64{loss}, []float64{plainLoss}, least(in, logP)),
	}
}

// BackwardBounds does the same for the gradients. An error of log_p is a relative one of
// all parts, and so of dmu and dlog_sigma, and one of g for dlogit.
func BackwardBounds(in Inputs, want, plain Gradients, dloss float64, p gmm.Problem) Bounds {
	logP, _ := Forward(in, p)
	g, off := math.Abs(dloss)/float64(p.Tokens), least(in, logP)
	return Bounds{
		DLogit:    tolerance.Plain(p.GradDType(), want.Logit, plain.Logit, off*g),
		DMu:       tolerance.Plain(p.GradDType(), want.Mu, plain.Mu, off*tolerance.Largest(want.Mu)),
		DLogSigma: tolerance.Plain(p.GradDType(), want.LogSigma, plain.LogSigma, off*max(g, tolerance.Largest(want.LogSigma))),
	}
}

// Spread returns how far log_p of each token may be off, to the first order, if inputs may be
// by off, whose y is not looked at.
func Spread(in, off Inputs, p gmm.Problem) []float64 {
	g := Backward(in, float64(p.Tokens), p)
	out := make([]float64, p.Tokens)
	for i := range g.Logit {
		out[i/p.Components] += math.Abs(g.Logit[i])*off.Logit[i] + math.Abs(g.Mu[i])*off.Mu[i] + math.Abs(g.LogSigma[i])*off.LogSigma[i]
	}
	return out
}

// BackwardSpread does the same for the gradients.
func BackwardSpread(in, off Inputs, dloss float64, p gmm.Problem) Gradients {
	n := p.Components
	exact := func(x float64) float64 { return x }
	out := Gradients{make([]float64, len(in.Logit)), make([]float64, len(in.Logit)), make([]float64, len(in.Logit))}
	g := math.Abs(dloss) / float64(p.Tokens)
	r, w, ofJoint := make([]float64, n), make([]float64, n), make([]float64, n)
	for t := range p.Tokens {
		a, logW, _ := mixture(in, p, t, exact)
		for k := range a {
			a[k] += logW[k]
		}
		sum := logSumExp(a, exact)
		meanJoint, meanLogit := 0.0, 0.0 // of the components, as they share log_p and the sum of weights
		for k := range n {
			i := t*n + k
			r[k], w[k] = math.Exp(a[k]-sum), math.Exp(logW[k])
			z, inverse := deviation(in, p, t, k, exact), math.Exp(-in.LogSigma[i])
			ofJoint[k] = off.Logit[i] + math.Abs(z)*inverse*off.Mu[i] + math.Abs(z*z-1)*off.LogSigma[i]
			meanJoint += r[k] * ofJoint[k]
			meanLogit += w[k] * off.Logit[i]
		}
		for k := range n {
			i := t*n + k
			z, inverse := math.Abs(deviation(in, p, t, k, exact)), math.Exp(-in.LogSigma[i])
			ofR := r[k] * (ofJoint[k] + meanJoint)
			out.Logit[i] = g * (ofR + w[k]*(off.Logit[i]+meanLogit))
			out.Mu[i] = g * (ofR*z*inverse + r[k]*(inverse*inverse*off.Mu[i]+2*z*inverse*off.LogSigma[i]))
			out.LogSigma[i] = g * (ofR*math.Abs(z*z-1) + r[k]*(2*z*inverse*off.Mu[i]+2*z*z*off.LogSigma[i]))
		}
	}
	return out
}
