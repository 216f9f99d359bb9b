// Package ref computes matrix products with an epilogue in float64, on gonum: the
// reference that kernels are compared with, and how far they may be off.
//
// Tensors are slices in row-major order of the shapes of package problem.
package ref

import (
	"math"
	"slices"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/blas64"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/glu/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/glu"
)

// Inputs are the tensors that a problem reads; missing tensors are nil.
type Inputs struct {
	A, B []float64
	C    []float64 // with Beta: the old content of C
	R    []float64 // with Residual
	X    []float64 // with TimesDSiLU and TimesDSiLUKeep
	Bias []float64 // with Bias
}

// Outputs are the tensors that a problem writes; missing tensors are nil.
type Outputs struct {
	C []float64
	X []float64 // with SiLUKeep
	S []float64 // with TimesDSiLUKeep

	roundoff, ofS float64 // the largest of a device's activation in C and S: activationRoundoff
}

// Multiply computes in float64 throughout.
func Multiply(in Inputs, p problem.Problem) Outputs {
	sum := products(in, p)
	out := epilogue(sum, in, p, func(v float64) float64 { return v })
	if p.Activation != problem.Identity {
		out.activation(sum, in, p)
	}
	return out
}

// activation sets the roundoffs of the activation.
func (out *Outputs) activation(sum []float64, in Inputs, p problem.Problem) {
	for i, s := range sum {
		v, x := p.Scale()*s, 0.0
		if p.Beta != 0 {
			v += p.Beta * in.C[i]
		}
		if p.Bias {
			v += in.bias(i, p)
		}
		if in.X != nil {
			x = in.X[i]
		}
		off, ofS := activationRoundoff(p.Activation, v, x)
		out.roundoff, out.ofS = max(out.roundoff, off), max(out.ofS, ofS)
	}
}

// products returns op(A)*op(B) of all batches. Sizes may be 0, as in a group.
func products(in Inputs, p problem.Problem) []float64 {
	sum := make([]float64, p.Batches()*p.M*p.N)
	if len(sum) == 0 || p.K == 0 {
		return sum // BLAS wants rows that are not empty
	}
	for batch := range p.Batches() {
		blas64.Gemm(transpose(p.TransA), transpose(p.TransB), 1,
			matrix(in.A, p.AShape(), batch), matrix(in.B, p.BShape(), batch), 0, matrix(sum, p.CShape(), batch))
	}
	return sum
}

func transpose(t bool) blas.Transpose {
	if t {
		return blas.Trans
	}
	return blas.NoTrans
}

// matrix returns one matrix of a (batch, rows, columns) tensor.
func matrix(data []float64, shape []int, batch int) blas64.General {
	size := shape[1] * shape[2]
	return blas64.General{Rows: shape[1], Cols: shape[2], Stride: shape[2], Data: data[batch*size : (batch+1)*size]}
}

// epilogue returns the outputs of the sums, rounding after each step.
func epilogue(sum []float64, in Inputs, p problem.Problem, round func(float64) float64) (out Outputs) {
	if p.WritesX() {
		out.X = make([]float64, len(sum))
	}
	if p.HasS() {
		out.S = make([]float64, len(sum))
	}
	out.C = make([]float64, len(sum))
	for i, s := range sum {
		v := round(p.Scale() * s)
		if p.Beta != 0 {
			v = round(v + round(p.Beta*in.C[i]))
		}
		if p.Bias {
			v = round(v + in.bias(i, p))
		}
		if out.X != nil {
			out.X[i] = v
		}
		if p.ReadsX() {
			value, slope := valueOf(p.Activation, in.X[i])
			if v = round(v * round(slope)); out.S != nil {
				out.S[i] = round(value)
			}
		} else if p.Activation != problem.Identity {
			value, _ := valueOf(p.Activation, v)
			v = round(value)
		}
		if p.Residual {
			v = round(v + in.R[i])
		}
		out.C[i] = v
	}
	return out
}

// bias returns the bias of element i of C.
func (in *Inputs) bias(i int, p problem.Problem) float64 { return in.Bias[i/(p.M*p.N)*p.N+i%p.N] }

// valueOf returns the function of an activation at x, and its derivative.
func valueOf(a problem.Activation, x float64) (value, slope float64) {
	if a.Function() == problem.OfSiLU {
		return SiLU(x), DSiLU(x)
	}
	return ref.Activation(geluOf(a), x)
}

// geluOf returns what package glu calls the function of an activation of gelu.
func geluOf(a problem.Activation) glu.Activation {
	if a.Function() == problem.OfGELU {
		return glu.GELU
	}
	return glu.GELUTanh
}

// SiLU returns v / (1 + exp(-v)).
func SiLU(v float64) float64 { return v / (1 + math.Exp(-v)) }

// DSiLU returns the derivative of SiLU.
func DSiLU(v float64) float64 {
	s := 1 / (1 + math.Exp(-v))
	return s * (1 + v*(1-s))
}

// Plain returns the outputs of a plain program: products and sums in float32, one term after the
// other, and every step of the epilogue rounded to p.Out, as a chain of library calls stores them.
func Plain(in Inputs, p problem.Problem) Outputs {
	sum := make([]float64, p.Batches()*p.M*p.N)
	a, b := rows(in.A, p.AShape(), p.TransA), rows(in.B, p.BShape(), !p.TransB)
	for batch := range p.Batches() {
		for i := range p.M {
			row := a[(batch*p.M+i)*p.K:][:p.K]
			for j := range p.N {
				col := b[(batch*p.N+j)*p.K:][:p.K]
				s := float32(0)
				for k, y := range row {
					s += y * col[k]
				}
				sum[(batch*p.M+i)*p.N+j] = float64(s)
			}
		}
	}
	return epilogue(sum, in, p, func(v float64) float64 { return float64(p.Out.Round(float32(v))) })
}

// rows returns the matrices of a tensor, transposed or not, as float32 in row-major
// order.
func rows(data []float64, shape []int, transposed bool) []float32 {
	out := make([]float32, 0, len(data))
	for m := range slices.Chunk(data, max(shape[1]*shape[2], 1)) {
		if !transposed {
			for _, v := range m {
				out = append(out, float32(v))
			}
			continue
		}
		for j := range shape[2] {
			for i := range shape[1] {
				out = append(out, float32(m[i*shape[2]+j]))
			}
		}
	}
	return out
}

// Rows returns the problem of some rows of C, and its inputs.
func Rows(rows []int, in Inputs, p problem.Problem) (problem.Problem, Inputs) {
	if len(rows) == p.M {
		return p, in
	}
	part := p
	part.M, part.TransA = len(rows), false
	pick := func(data []float64, cols int, transposed bool) []float64 {
		if data == nil {
			return nil
		}
		out := make([]float64, 0, p.Batches()*len(rows)*cols)
		for m := range slices.Chunk(data, p.M*cols) {
			for _, row := range rows {
				for col := range cols {
					if transposed {
						out = append(out, m[col*p.M+row])
					} else {
						out = append(out, m[row*cols+col])
					}
				}
			}
		}
		return out
	}
	return part, Inputs{A: pick(in.A, p.K, p.TransA), B: in.B, Bias: in.Bias, C: pick(in.C, p.N, false), R: pick(in.R, p.N, false), X: pick(in.X, p.N, false)}
}

// Bounds are how far outputs may be off, every element.
type Bounds struct{ C, X, S float64 }

// NewBounds returns the bounds of a kernel, given the outputs of Multiply and Plain:
// tolerance.Plain for each. Plain's error says little where outputs are few and Plain is right
// by luck, so least is the roundoff of terms that cancel, which are beta*C, the bias and R, of sums in
// another order (Sums), and of a device's exponential.
func NewBounds(want, plain Outputs, in Inputs, p problem.Problem) Bounds {
	added := math.Abs(p.Beta)*tolerance.Largest(in.C) + tolerance.Largest(in.Bias)
	terms := added + tolerance.Largest(in.R)
	sums := tolerance.Roundoff32*added + Sums(in, p, p.Out.Eps()/2*tolerance.Largest(want.C))
	return Bounds{
		C: tolerance.Plain(p.Out, want.C, plain.C, p.Out.Eps()/2*terms+sums+want.roundoff),
		X: tolerance.Plain(p.Out, want.X, plain.X, p.Out.Eps()/2*terms+sums),
		S: tolerance.Plain(p.Out, want.S, plain.S, want.ofS),
	}
}

// Sums bounds the error of sums of products. A bound below enough need not be exact.
//
// Terms in any order and of random signs have partial sums up to about the root of the sum of their
// squares, and k roundings of partial sums, which go both ways. The largest output counts. The high
// and low parts of float32 operands are off by 2^-21 of a term at most. So a term is off by 4 times
// the counted error, and tolerance.Plain allows 4 times the counted error.
//
// A matrix unit loses more with 16-bit operands. NVIDIA's adds at least four products at a time
// to the sum and truncates the result: 2^-23 of the partial sum each time, always to one side.
func Sums(in Inputs, p problem.Problem, enough float64) float64 {
	if p.K == 0 {
		return 0
	}
	rate := sumsRate(p) * math.Abs(p.Scale())
	// No output's squares add up to more than this.
	a, b := tolerance.Largest(in.A), tolerance.Largest(in.B)
	if most := rate * math.Sqrt(float64(p.K)) * a * b; most <= enough {
		return most
	}
	return rate * math.Sqrt(tolerance.Largest(products(Inputs{A: square(in.A), B: square(in.B)}, p)))
}

// sumsRate returns the error that Sums counts for each root of a sum of squares.
func sumsRate(p problem.Problem) float64 {
	rate := tolerance.Roundoff32 * max(2, math.Sqrt(float64(p.K)))
	if p.DType != dtype.Float32 {
		rate = max(rate, math.Ceil(float64(p.K)/4)*0x1p-23)
	}
	return rate
}

// activationRoundoff bounds the error of an activation for a sum v and X, in float32 arithmetic,
// in C and in S. A device's exp(x) may be off by 3 + 2|x| units in the last place (Vulkan
// specification), and a division by 2.5. Like gmm's bound, this counts half of that;
// tolerance.Plain allows 4 times as much in float32.
func activationRoundoff(a problem.Activation, v, x float64) (c, s float64) {
	silu := func(v float64) float64 {
		s := 1 / (1 + math.Exp(-v))
		return tolerance.Roundoff32 * math.Abs(v) * s * ((1-s)*(3+2*math.Abs(v)) + 1.5)
	}
	switch {
	case a.Function() > problem.OfSiLU:
		if a.Plain() == problem.SiLU || a.Plain() == problem.SiLUKeep {
			value, _ := ref.Bounded(geluOf(a), v)
			return value.Off, 0
		}
		value, slope := ref.Bounded(geluOf(a), x)
		return math.Abs(v) * slope.Off, value.Off
	case a == problem.SiLU, a == problem.SiLUKeep:
		return silu(v), 0
	case a == problem.TimesDSiLU, a == problem.TimesDSiLUKeep:
		s := 1 / (1 + math.Exp(-x))
		// silu'(x) = s * (1 + x*(1-s)), in which terms may cancel, and 1-s is off by as much as s
		off := s * ((1-s)*(3+2*math.Abs(x))*math.Abs(1+x*(1-2*s)) + 1 + math.Abs(x)*(2*(1-s)+s))
		return tolerance.Roundoff32 * math.Abs(v) * off, silu(x)
	}
	return 0, 0
}

// Spread returns how far each element of op(A)*op(B) may be off if elements of A and B are off by
// offA and offB, nil for not at all, with random signs; and by Sums.
func Spread(in Inputs, offA, offB []float64, p problem.Problem) []float64 {
	a, b := square(in.A), square(in.B)
	sums := products(Inputs{A: a, B: b}, p)
	off := make([]float64, len(sums))
	for _, x := range []struct {
		Inputs
		on bool
	}{{Inputs{A: square(offA), B: b}, offA != nil}, {Inputs{A: a, B: square(offB)}, offB != nil}} {
		if x.on {
			for i, v := range products(x.Inputs, p) {
				off[i] += v
			}
		}
	}
	for i := range off {
		off[i] = math.Sqrt(off[i]) + sumsRate(p)*math.Sqrt(sums[i])
	}
	return off
}

func square(x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = v * v
	}
	return y
}
