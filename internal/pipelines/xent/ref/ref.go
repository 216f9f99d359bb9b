// Package ref computes the cross entropy of a last layer and its gradients in float64, and derives what a
// kernel may be off by, element by element, from the operations that the kernel makes. It uses no device.
package ref

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	gemm "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/xent"
)

// Inputs are the tensors of a call, row-major: H (tokens, dim) and W (vocabulary, dim), or Logits (tokens,
// vocabulary); Labels (tokens); DLoss (1), nil for 1; and what an accumulated DW (vocabulary, dim) held.
type Inputs struct{ H, W, Logits, Labels, DLoss, DW []float64 }

// A Result is a tensor with the largest error of each of its elements.
type Result struct{ Want, Bounds []float64 }

// Results are all outputs. DX is the gradient by the logits, which the caller sees if they are given.
type Results struct{ Losses, LSE, Loss, DX, DH, DW Result }

// A Division says how many chunks of tokens and parts of W a call has: each rounds dw, or dh, once.
type Division struct{ Chunks, Parts int }

const (
	u = tolerance.Roundoff32
	// times is how many counted errors a result may be off by. Errors of many terms are counted by the
	// root of the sum of their squares, each with its largest rounding: four times that are seven deviations.
	times = 4
)

// A state is the reference of a call as far as it is computed: logits and how far they are off, and of
// each token what its gradient needs.
type state struct {
	p      xent.Problem
	x, off []float64
	factor []float64 // of a token's gradient: 0 for an ignored one, NaN for a wrong label
	offLSE []float64
}

// Compute returns the outputs of both passes; without gradients, the last three are empty.
func Compute(in Inputs, p xent.Problem, by Division, gradients bool) Results {
	s := state{p: p, x: in.Logits}
	if p.Dim > 0 {
		e := problem.Problem{M: p.Tokens, N: p.Vocabulary, K: p.Dim, TransB: true, DType: p.DType}
		product := gemm.Inputs{A: in.H, B: in.W}
		s.x, s.off = gemm.Multiply(product, e).C, gemm.Spread(product, nil, nil, e)
		least := cancelled(in.H, in.W, e)
		for i := range s.off {
			s.off[i] += least
		}
	} else {
		s.off = make([]float64, len(s.x))
	}
	r := s.losses(in)
	if gradients {
		r.DX = s.gradient(r.LSE.Want, in.Labels)
		if p.Dim > 0 {
			r.DH, r.DW = s.products(in, r.DX, by)
		}
	}
	return r
}

// cancelled bounds the error of elements that are far below the largest of their row, in float32 on
// matrices: package gemm says 2^-50 of that largest.
func cancelled(a, b []float64, e problem.Problem) float64 {
	if e.DType != dtype.Float32 {
		return 0
	}
	return 0x1p-50 * float64(e.K) * tolerance.Largest(a) * tolerance.Largest(b)
}

// losses computes the outputs of the forward pass. A device's exp(d) may be off by 3 + 2|d| units in the
// last place and its log by 3, or 2^-21 near 1 (Vulkan specification); this counts half of that. The sum
// over a row goes through about vocabulary/1024 + 32 additions.
func (s *state) losses(in Inputs) (r Results) {
	p, n := s.p, s.p.Vocabulary
	additions := 32 + float64(n)/1024
	l, lse := make([]float64, p.Tokens), make([]float64, p.Tokens)
	offL := make([]float64, p.Tokens)
	s.factor, s.offLSE = make([]float64, p.Tokens), make([]float64, p.Tokens)
	counted := 0.0
	for t := range p.Tokens {
		x, off, most := s.x[t*n:(t+1)*n], s.off[t*n:(t+1)*n], math.Inf(-1)
		for _, v := range x {
			most = max(most, v)
		}
		sum, mean, size, offMean := 0.0, 0.0, 0.0, 0.0
		for _, v := range x {
			sum += math.Exp(v - most)
		}
		lse[t] = most + math.Log(sum)
		s.offLSE[t] = u*(additions+math.Abs(lse[t])+3*math.Log(sum)) + 0x1p-22
		for i, v := range x {
			weight := math.Exp(v - lse[t])
			if weight > 0 { // a logit of -Inf has no part in anything
				s.offLSE[t] += weight * (off[i] + u*(4+3*math.Abs(v-most)))
			}
			mean, size, offMean = mean+v/float64(n), size+math.Abs(v)/float64(n), offMean+off[i]/float64(n)
		}
		label := int(in.Labels[t])
		if label == p.IgnoreLabel() {
			continue
		}
		counted++
		if label < 0 || label >= n {
			l[t], s.factor[t] = math.NaN(), math.NaN()
			continue
		}
		s.factor[t] = 1
		z := p.ZLoss * lse[t]
		l[t] = lse[t] - x[label] + z*lse[t]
		offL[t] = math.Abs(1+2*z)*s.offLSE[t] + off[label] + u*(3*math.Abs(lse[t])+2*math.Abs(x[label])+4*math.Abs(z*lse[t]))
		if p.Smoothing > 0 {
			l[t] += p.Smoothing * (x[label] - mean)
			offL[t] += p.Smoothing * (off[label] + offMean + u*(4*math.Abs(x[label])+additions*size))
		}
	}
	r.Losses, r.LSE = bounded(dtype.Float32, l, offL), bounded(dtype.Float32, lse, s.offLSE)
	r.Loss = s.total(l, offL, counted)
	if in.DLoss != nil {
		for t := range s.factor {
			s.factor[t] *= in.DLoss[0]
		}
	}
	return r
}

// total returns the loss, and divides the factors of gradients as it divides the sum.
func (s *state) total(l, offL []float64, counted float64) Result {
	each := 1.0
	if !s.p.Sum && counted > 0 {
		each = 1 / counted
	}
	sum, off, size := 0.0, 0.0, 0.0
	for t, v := range l {
		s.factor[t] *= each
		sum, off, size = sum+each*v, off+each*offL[t], size+each*math.Abs(v)
	}
	return bounded(dtype.Float32, []float64{sum}, []float64{off + u*size*(16+float64(len(l))/256)})
}

// gradient returns dx, rounded to the format that the products read.
func (s *state) gradient(lse, labels []float64) Result {
	n := s.p.Vocabulary
	dx, offs := make([]float64, len(s.x)), make([]float64, len(s.x))
	even := s.p.Smoothing / float64(n)
	for t, factor := range s.factor {
		weight := 1 + 2*s.p.ZLoss*lse[t]
		for v := range n {
			i, hit := t*n+v, 0.0
			if v == int(labels[t]) {
				hit = 1 - s.p.Smoothing
			}
			if factor == 0 {
				continue
			}
			part := math.Exp(s.x[i] - lse[t])
			off := u * 3 * (part*math.Abs(weight) + hit + even)
			if part > 0 {
				exponent := s.off[i] + s.offLSE[t] + u*(6+3*math.Abs(s.x[i]-lse[t]))
				off += part * math.Abs(weight) * math.Expm1(min(times*exponent, 100)) / times
				off += part * 2 * s.p.ZLoss * (s.offLSE[t] + 2*u*math.Abs(lse[t]))
			}
			dx[i] = factor * (part*weight - hit - even)
			offs[i] = math.Abs(factor)*(off+0x1p-126) + 4*u*math.Abs(dx[i]) + 0x1p-126 // denormal numbers may be 0
		}
	}
	return bounded(s.p.DType, dx, offs)
}

// products returns dh and dw. The errors of dx are independent of each other but for the token's lse, and
// for roundings of equal numbers.
func (s *state) products(in Inputs, dx Result, by Division) (dh, dw Result) {
	p := s.p
	off := make([]float64, len(dx.Bounds))
	for i, b := range dx.Bounds {
		off[i] = b / times
		if p.DType != dtype.Float32 {
			off[i] = b // most of it is one rounding
		}
	}
	e := problem.Problem{M: p.Tokens, N: p.Dim, K: p.Vocabulary, DType: p.DType}
	largest := tolerance.Largest(in.W)
	common := func(t int) float64 {
		return math.Abs(s.factor[t]*(1+2*p.ZLoss)) * s.offLSE[t] * largest
	}
	dh = product(gemm.Inputs{A: dx.Want, B: in.W}, off, e, p.DType, by.Parts, nil, common)
	if p.Frozen {
		return dh, dw
	}
	e = problem.Problem{M: p.Vocabulary, N: p.Dim, K: p.Tokens, TransA: true, DType: p.DType}
	var held []float64
	if p.Accumulate {
		held = in.DW
	}
	dw = product(gemm.Inputs{A: dx.Want, B: in.H}, off, e, p.GradDType(), by.Chunks, held, nil)
	return dh, dw
}

// product returns a product of dx that is added in parts to what its output held, and rounded to a format
// after each. Common is what all elements of a row of dx, and so all of a row of the output, have in
// common. What a product of the rounded dx is off by counts twice.
func product(in gemm.Inputs, offA []float64, e problem.Problem, format dtype.DType, parts int, held []float64, common func(row int) float64) Result {
	want, off := gemm.Multiply(in, e).C, gemm.Spread(in, offA, nil, e)
	if e.DType != dtype.Float32 {
		rounded := make([]float64, len(in.A))
		for i, v := range in.A {
			rounded[i] = float64(e.DType.Round(float32(v)))
		}
		for i, v := range gemm.Multiply(gemm.Inputs{A: rounded, B: in.B}, e).C {
			off[i] += math.Abs(v-want[i]) * 2 / times
		}
	}
	var sizes []float64
	if parts > 1 || held != nil {
		sizes = gemm.Multiply(gemm.Inputs{A: magnitudes(in.A), B: magnitudes(in.B)}, e).C
	}
	least := cancelled(in.A, in.B, e)
	for i := range want {
		off[i] += least
		if common != nil {
			off[i] += common(i / e.N)
		}
		if held != nil {
			want[i] += held[i]
			sizes[i] += math.Abs(held[i])
		}
		if sizes != nil {
			off[i] += float64(parts) * (tolerance.Stored(format, sizes[i]) + u*sizes[i])
		}
	}
	return bounded(format, want, off)
}

func magnitudes(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = math.Abs(v)
	}
	return y
}

// bounded returns a result, stored in a format, whose float32 is off by times off.
func bounded(format dtype.DType, want, off []float64) Result {
	r := Result{want, make([]float64, len(want))}
	for i, w := range want {
		if b := times * off[i]; !math.IsNaN(b) { // NaN is wanted where it is
			r.Bounds[i] = b + tolerance.Stored(format, math.Abs(w)+b)
		}
	}
	return r
}
