// Package ref computes the log-probability of tokens under mixtures of normal
// distributions whose components are the heads of a model, and its gradients, in float64,
// and as a plain program does: packages mlp/ref and gmm/ref, one after the other. It
// uses no device.
package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	gmmref "github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	mlpref "github.com/flashvk/flashvk/internal/pipelines/mlp/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// Outputs of a head: logit, mu, log sigma.
const outputs = 3

// Inputs are the tensors that a problem reads, row-major.
type Inputs struct{ X, W1, W2, Y []float64 }

// Gradients are the gradients of the loss.
type Gradients struct{ DX, DW1, DW2 []float64 }

// heads returns the inputs of the perceptrons, with the gradient by their outputs if
// there is one.
func (in Inputs) heads(dy []float64) mlpref.Inputs {
	return mlpref.Inputs{X: in.X, W1: in.W1, W2: in.W2, DY: dy}
}

// mixtures returns the inputs of gmm, given the outputs of the heads.
func (in Inputs) mixtures(out []float64) gmmref.Inputs {
	m := gmmref.Inputs{Y: in.Y}
	for i := 0; i < len(out); i += outputs {
		m.Logit, m.Mu, m.LogSigma = append(m.Logit, out[i]), append(m.Mu, out[i+1]), append(m.LogSigma, out[i+2])
	}
	return m
}

// Outputs returns the outputs of the heads, in float64: the mixtures.
func Outputs(in Inputs, p mixture.Problem) gmmref.Inputs {
	return in.mixtures(mlpref.Compute(in.heads(nil), p.Perceptrons()).Y)
}

// plainOutputs returns the same in p.DType, as a plain program stores it.
func plainOutputs(in Inputs, p mixture.Problem) gmmref.Inputs {
	return in.mixtures(mlpref.Plain(in.heads(nil), p.Perceptrons()).Y)
}

// Forward returns the log-probability of each token and minus their mean:
//
//	(logit, mu, log_sigma)[:, k] = silu(x * w1[k]) * w2[k]
//	log_p = logsumexp over k of log_softmax(logit) + log_n, as gmm has it
//	loss  = -mean(log_p)
func Forward(in Inputs, p mixture.Problem) (logP []float64, loss float64) {
	return gmmref.Forward(Outputs(in, p), p.Mixtures())
}

// PlainForward is Forward as a plain program computes it, with every tensor in p.DType up
// to the mixtures, and float32 from there on.
func PlainForward(in Inputs, p mixture.Problem) (logP []float64, loss float64) {
	return gmmref.PlainForward(plainOutputs(in, p), p.Mixtures())
}

// Backward returns the gradients of dloss times the loss.
func Backward(in Inputs, dloss float64, p mixture.Problem) Gradients {
	return gradients(in, gmmref.Backward(Outputs(in, p), dloss, p.Mixtures()), p, mlpref.Compute)
}

// PlainBackward is Backward as a plain program computes it, with gradients by the
// mixtures in p.DType.
func PlainBackward(in Inputs, dloss float64, p mixture.Problem) Gradients {
	return gradients(in, gmmref.PlainBackward(plainOutputs(in, p), dloss, p.Mixtures()), p, mlpref.Plain)
}

func gradients(in Inputs, g gmmref.Gradients, p mixture.Problem, f func(mlpref.Inputs, mlp.Problem) mlpref.Outputs) Gradients {
	out := f(in.heads(interleave(g)), p.Perceptrons())
	return Gradients{out.DX, out.DW1, out.DW2}
}

// interleave returns gradients by mixtures as gradients by outputs of heads.
func interleave(g gmmref.Gradients) []float64 {
	dy := make([]float64, 0, outputs*len(g.Logit))
	for i := range g.Logit {
		dy = append(dy, g.Logit[i], g.Mu[i], g.LogSigma[i])
	}
	return dy
}

// Bounds are the largest absolute errors of results.
type Bounds struct{ LogP, Loss, DX, DW1, DW2 float64 }

// ForwardBounds returns how far a kernel may be off by the rule of tolerance.Plain.
func ForwardBounds(in Inputs, p mixture.Problem) Bounds {
	m := Outputs(in, p)
	logP, loss := gmmref.Forward(m, p.Mixtures())
	plain, plainLoss := PlainForward(in, p)
	b := gmmref.ForwardBounds(m, logP, plain, loss, plainLoss)
	return Bounds{LogP: b.LogP, Loss: b.Loss}
}

// BackwardBounds does the same for the gradients. An error of the gradients by the
// mixtures, relative to the largest, is one of all others, relative to theirs.
func BackwardBounds(in Inputs, want Gradients, dloss float64, p mixture.Problem) Bounds {
	m, single := Outputs(in, p), p.Mixtures()
	single.Grad = dtype.Some(dtype.Float32) // the rounding to p.DType is in plain
	dy := gmmref.Backward(m, dloss, single)
	b := gmmref.BackwardBounds(m, dy, gmmref.PlainBackward(m, dloss, single), dloss, single)
	relative := max(b.DLogit, b.DMu, b.DLogSigma) / max(tolerance.Largest(dy.Logit), tolerance.Largest(dy.Mu), tolerance.Largest(dy.LogSigma), math.SmallestNonzeroFloat64)
	plain := PlainBackward(in, dloss, p)
	return Bounds{
		DX:  tolerance.Plain(p.DType, want.DX, plain.DX, relative*tolerance.Largest(want.DX)),
		DW1: tolerance.Plain(p.GradDType(), want.DW1, plain.DW1, relative*tolerance.Largest(want.DW1)),
		DW2: tolerance.Plain(p.GradDType(), want.DW2, plain.DW2, relative*tolerance.Largest(want.DW2)),
	}
}

// Tokens returns the problem of some tokens, with the same log_p as in the whole problem and, for
// the dloss that Tokens returns, the same dx.
func Tokens(rows []int, in Inputs, dloss float64, p mixture.Problem) (mixture.Problem, Inputs, float64) {
	part, some := mlpref.Tokens(rows, mlpref.Inputs{X: in.X, W1: in.W1, W2: in.W2}, p.Perceptrons())
	out := Inputs{X: some.X, W1: some.W1, W2: some.W2}
	for _, t := range rows {
		out.Y = append(out.Y, in.Y[t])
	}
	dloss *= float64(part.Tokens) / float64(p.Tokens) // of a mean over fewer
	p.Tokens = part.Tokens
	return p, out, dloss
}

// spread returns how far outputs of heads may be off, if hidden units are rounded to p.DType:
// mlp/ref says how. Outputs are not rounded.
func spread(in Inputs, p mixture.Problem) gmmref.Inputs {
	single := p.Perceptrons()
	heads := in.heads(nil)
	return in.mixtures(mlpref.Spread(heads, nil, single).Y)
}

// ForwardBoundsOfFew is ForwardBounds where there may be so few outputs that the plain program is
// right by luck: Spread of gmm/ref counts as its error at the least.
func ForwardBoundsOfFew(in Inputs, p mixture.Problem) Bounds {
	b := ForwardBounds(in, p)
	most, mean := 0.0, 0.0
	for _, off := range gmmref.Spread(Outputs(in, p), spread(in, p), p.Mixtures()) {
		most = max(most, off)
		mean += off / float64(p.Tokens)
	}
	b.LogP, b.Loss = max(b.LogP, 2*most), max(b.Loss, 2*mean)
	return b
}

// BackwardBoundsOfFew is the same for BackwardBounds. Gradients by outputs are rounded to p.DType.
func BackwardBoundsOfFew(in Inputs, want Gradients, dloss float64, p mixture.Problem) Bounds {
	b := BackwardBounds(in, want, dloss, p)
	m, single := Outputs(in, p), p.Perceptrons()
	g, off := gmmref.Backward(m, dloss, p.Mixtures()), gmmref.BackwardSpread(m, spread(in, p), dloss, p.Mixtures())
	dy, offDY := interleave(g), interleave(off)
	for i, v := range dy {
		offDY[i] += tolerance.Stored(p.DType, v)
	}
	heads := in.heads(dy)
	x := mlpref.Spread(heads, offDY, single)
	b.DX = max(b.DX, tolerance.Plain(p.DType, want.DX, want.DX, tolerance.Largest(x.DX)))
	b.DW1 = max(b.DW1, tolerance.Plain(p.GradDType(), want.DW1, want.DW1, tolerance.Largest(x.DW1)))
	b.DW2 = max(b.DW2, tolerance.Plain(p.GradDType(), want.DW2, want.DW2, tolerance.Largest(x.DW2)))
	return b
}
