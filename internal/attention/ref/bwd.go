package ref

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// Upstream holds the gradients that a backward pass starts from: gradients of a loss with respect
// to the results of the forward pass. All elements are finite.
type Upstream[T Float] struct {
	DO   []T // attention.Problem.OShape
	DLSE []T // attention.Problem.LSEShape; nil stands for zeros
}

// check returns an error that names the first slice that does not fit p.
func (up *Upstream[T]) check(p attention.Problem) error {
	return checkSlices(false, []slice{{"do", true, len(up.DO), p.OShape()}, {"dlse", up.DLSE != nil, len(up.DLSE), p.LSEShape()}})
}

// Gradients are the results of a backward pass: the gradients of the same loss with respect to the
// inputs of the forward pass, contiguous in logical order.
type Gradients struct {
	DQ []float64 // attention.Problem.QShape
	DK []float64 // KShape
	DV []float64 // VShape

	// DBias (BiasShape) is summed over the axes that the bias shares, DSinks (num_heads) over batches
	// and rows. They are nil if the problem has no bias or sinks.
	DBias, DSinks []float64
}

func newGradients(p attention.Problem) Gradients {
	make64 := func(shape []int) []float64 { return make([]float64, product(shape)) }
	g := Gradients{DQ: make64(p.QShape()), DK: make64(p.KShape()), DV: make64(p.VShape())}
	if p.Bias.On {
		g.DBias = make64(p.BiasShape())
	}
	if p.Sinks {
		g.DSinks = make64(p.SinksShape())
	}
	return g
}

// Backward computes in float64, with all features, the gradients of a loss with respect to the inputs
// of Forward, from the gradients with respect to its results:
//
//	P      = exp(S - LSE)
//	W      = P * Z                             Z is what dropout multiplies a weight with: 0 or 1/(1-p)
//	dP     = (dO * Vᵀ) * Z
//	Delta  = rowsum(dO * O)
//	dS     = P * (dP - Delta + dLSE)           the gradient of the scores x of attention.Problem
//	dX     = dS * (1 - tanh(x)²)               with a Softcap, of x before it; dS without
//	dQ     = Scale * dX * K
//	dK     = Scale * dXᵀ * Q                   summed over the heads that read the key head
//	dV     = Wᵀ * dO                           likewise
//	dBias  = dS                                summed over the axes that the bias shares
//	dSinks = sum over batches and rows of exp(sink - LSE) * (dLSE - Delta)
//
// where products of matrices of scores are element by element. These are the formulas of section 2.2
// of Dao, FlashAttention-2 (arXiv:2307.08691), and what features make of them.
//
// What is hidden from a row gets nothing from it, and may be anything, as in Forward: rows that see no
// key have dQ = 0, keys that no row sees dK = dV = 0, and so have rows and keys of no sequence.
//
// GradientBounds needs the scope. The error names the argument that is not valid.
func Backward[T Float](up Upstream[T], in Inputs[T], p attention.Problem) (g Gradients, s GradientScope, err error) {
	if err := cmp.Or(in.check(p), up.check(p)); err != nil {
		return g, s, err
	}
	o, lse := make([]float64, product(p.OShape())), make([]float64, product(p.LSEShape()))
	if err := Forward(o, lse, in, p, nil); err != nil {
		return g, s, err
	}
	w := pairs[float64, T]{p: p, in: &in, up: &up, o: o, lse: lse, round: exact, roundBias: exact}
	all := w.compute()
	s = newGradientScope(up, in, lse, p, all)
	s.BiasWeight, s.BiasRounded, s.SinkWeight = all.bias, math.Sqrt(all.shared), all.sink
	return w.g, s, nil
}

// PlainBackward evaluates the formulas of Backward as a straightforward program in the storage type
// would, from O and LSE as the forward pass leaves them:
//
//	P      = exp(S - LSE)                      float32, as is what features make of S
//	dP     = (dO * Vᵀ) * Z                     float32
//	Delta  = rowsum(dO * O)                    float32
//	dS     = P * (dP - Delta + dLSE)           float32; its sum dBias is rounded to the bias's format, and without
//	                                           a Softcap is one of dX, as kernels may have it
//	dX     = dS * (1 - tanh(x)²)               float32, then rounded to p.DType
//	dQ, dK = Scale * (sum of dX*K, of dX*Q)    sums of float32, rounded to p.DType at the end
//	dV     = sum of W*dO                       W = P*Z rounded to p.DType; likewise
//	dSinks = sum of exp(sink - LSE) * (dLSE - Delta)  float32
//
// GradientBounds derives a kernel's tolerance from PlainBackward, as PlainBound does from Plain. O
// and LSE come from Forward, rounded to p.DType and float32 (Saved). All gradients are rounded to
// float32.
func PlainBackward[T Float](o, lse []float64, up Upstream[T], in Inputs[T], p attention.Problem) (Gradients, error) {
	if err := cmp.Or(in.check(p), up.check(p), checkSaved(len(o), len(lse), p)); err != nil {
		return Gradients{}, err
	}
	w := pairs[float32, T]{
		p: p, in: &in, up: &up, o: convert[float32](o), lse: convert[float32](lse), round: p.DType.Round, roundBias: p.Bias.DType.Round,
	}
	w.compute()
	return w.g, nil
}

// checkSaved returns an error unless O and LSE have the lengths of whole tensors.
func checkSaved(o, lse int, p attention.Problem) error {
	return checkSlices(false, []slice{{"o", true, o, p.OShape()}, {"lse", true, lse, p.LSEShape()}})
}

// Saved returns what the backward kernels are given of the forward pass: O and LSE as Forward computes
// them, rounded to p.DType and float32. Rows that are in no sequence are 0.
func Saved[T Float](in Inputs[T], p attention.Problem) (o, lse []float64, err error) {
	o, lse = make([]float64, product(p.OShape())), make([]float64, product(p.LSEShape()))
	err = Forward(o, lse, in, p, nil)
	for i, x := range o {
		o[i] = float64(p.DType.Round(float32(x)))
	}
	for i, x := range lse {
		lse[i] = float64(dtype.Float32.Round(float32(x)))
	}
	return o, lse, err
}

// SampleBackward computes the gradients of some rows and keys of a backward pass, by the formulas of
// Backward, and how far a kernel may be from them. It is for problems whose gradients would all take
// too long. O and LSE are as a forward pass left them. All inputs are whole tensors, contiguous in
// logical order. Of rows the result has DQ (len(rows), head_dim), of keys DK (len(keys), head_dim) and
// DV (len(keys), value_dim); at least one of each is needed.
//
// A row costs 2*(2*head_dim + value_dim) operations for each key that it sees, a key 4*(head_dim +
// value_dim) for each row of each head that sees it, all in float64 and once more in float32, for the
// bounds.
func SampleBackward[T Float](o, lse []T, up Upstream[T], in Inputs[T], p attention.Problem, rows []Row, keys []Key) (Gradients, GradientBound, error) {
	err := cmp.Or(in.check(p), checkSaved(len(o), len(lse), p), up.check(p))
	if err == nil && (len(rows) == 0 || len(keys) == 0) {
		err = fmt.Errorf("attention: a sample of %d rows and %d keys: it needs one of each", len(rows), len(keys))
	}
	if err != nil {
		return Gradients{}, GradientBound{}, err
	}
	want := pairs[float64, T]{p: p, in: &in, up: &up, o: convert[float64](o), lse: convert[float64](lse), round: exact}
	plain := pairs[float32, T]{p: p, in: &in, up: &up, o: convert[float32](o), lse: convert[float32](lse), round: p.DType.Round}
	want.sample(rows, keys)
	plain.sample(rows, keys)
	sums := want.compute()
	plain.compute()
	return want.g, GradientBounds(want.g, plain.g, newGradientScope(up, in, lse, p, sums), p), nil
}

func convert[To, From Float](x []From) []To {
	var buf []To
	return gather(&buf, x, 0, 1, len(x), 1)
}

// newGradientScope returns the magnitudes that follow from the inputs, LSE and sums.
func newGradientScope[F, T Float](up Upstream[T], in Inputs[T], lse []F, p attention.Problem, sums pairSums) GradientScope {
	d := p.ValueHeadDim()
	return GradientScope{
		Scope: Measure(in, p), DP: longest(up.DO, d) * longest(in.V, d) * p.Dropout.KeepScale(),
		DLSE: largest(up.DLSE), Q: largest(in.Q), K: largest(in.K), DO: largest(up.DO), LSE: largest(lse), Score: sums.score, Scored: sums.scored, Valued: sums.valued, Parts: sums.parts,
		Term: sums.term, KeyTerm: math.Sqrt(sums.square), KeyRounded: math.Sqrt(sums.rounded), DS: sums.ds, KeyWeight: sums.weight,
	}
}
