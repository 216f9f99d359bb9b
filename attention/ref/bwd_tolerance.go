package ref

import (
	"math"

	"github.com/flashvk/flashvk/attention/problem"
	"github.com/flashvk/flashvk/dtype"
)

// A GradientBound is the largest absolute error that each gradient may have on
// one problem, in the maximum norm.
type GradientBound struct{ DQ, DK, DV, DBias, DSinks float64 }

// A GradientScope holds the magnitudes that the bounds of gradients are derived
// from. Rows are measured by their Euclidean norm.
type GradientScope struct {
	Scope
	// DP bounds |dP| and |Delta|: the largest row of dO times that of V, over 1-p
	// with dropout (Cauchy-Schwarz; O is a mean of rows of V).
	DP float64
	// DLSE, Q, K and DO are the largest elements, LSE the largest that is finite.
	DLSE, Q, K, DO, LSE float64
	// KeyWeight is the largest sum of weights P that a key gets, from all rows and
	// heads that read it; BiasWeight that of the scores that share an element of the
	// bias; SinkWeight that of a sink.
	KeyWeight, BiasWeight, SinkWeight float64
}

// MeasureBackward returns the magnitudes of a problem. It computes what Backward
// does.
func MeasureBackward[T Float](up Upstream[T], in Inputs[T], p problem.Problem) (GradientScope, error) {
	sums, lse := newWeightSums(p), make([]float64, product(p.LSEShape()))
	if err := backward(NewGradients(p), &up, &in, p, sums); err != nil {
		return GradientScope{}, err
	}
	if err := Forward(make([]float64, product(p.OShape())), lse, in, p); err != nil {
		return GradientScope{}, err
	}
	d, heads := p.ValueHeadDim(), make([]float64, p.NumHeads)
	sumSinks(heads, sums.sinks)
	return GradientScope{
		Scope: Measure(in, p),
		DP:    longest(up.DO, d) * longest(in.V, d) * p.Dropout.KeepScale(),
		DLSE:  largest(up.DLSE), Q: largest(in.Q), K: largest(in.K), DO: largest(up.DO), LSE: largest(lse),
		KeyWeight: largest(sums.keys), BiasWeight: largest(sums.bias), SinkWeight: largest(heads),
	}, nil
}

// GradientBounds returns the bounds for a kernel that stores p.DType and sums in
// float32, which is given O and LSE rounded to their formats. Want and plain
// are what Backward and PlainBackward compute.
//
//	|got - want| <= times * max(max|plain - want|, half * max|want|)
//
// half being the roundoff of the gradient's format. As in PlainBound, plain's
// error is that of the format on these very inputs; it counts as one rounding of
// the largest result at the least, where plain is exact by luck.
//
// times is 4 for dQ and 2 for dK, dV and dBias in 16 bits, the factors of
// PyTorch's tests. For float32 it is 4, the project's promise, as explained at
// PlainBound; for dSinks it is 4 always, and one rounding of its terms is allowed,
// since the largest of a few errors, one for each head, says little about how large
// they may be.
//
// Where a gradient is nothing but cancellation, as dP - Delta is for a row that
// sees one key, plain may cancel exactly and a kernel, that sums in another order,
// may not. If all of want is within 2*u of the terms that cancel, so may got be:
// the error of a float32 sum of n products of random sign is about 0.4*u*n times
// their size, and that of two sums with the tail of many such 2*u*n.
//
// A broken PlainBackward must not excuse a broken kernel, so no bound exceeds
// its ceiling (gradientCeilings).
func GradientBounds(want, plain Gradients, s GradientScope, p problem.Problem) GradientBound {
	factor := func(low float64) float64 {
		if p.DType == dtype.Float32 {
			return 4
		}
		return low
	}
	most, terms := gradientCeilings(s, p), s.terms(p)
	bound := func(want, plain []float64, times, half, term, ceiling float64) float64 {
		size := 0.0
		for _, x := range want {
			size = max(size, math.Abs(x))
		}
		off := times * max(MaxDiff(plain, want).Off, half*size)
		if cancel := 2 * roundoff32 * term; size <= cancel {
			off = max(off, cancel)
		}
		return min(off, ceiling)
	}
	half := p.DType.Eps() / 2
	return GradientBound{
		DQ:     bound(want.DQ, plain.DQ, factor(4), half, terms.DQ, most.DQ),
		DK:     bound(want.DK, plain.DK, factor(2), half, terms.DK, most.DK),
		DV:     bound(want.DV, plain.DV, factor(2), half, 0, most.DV),
		DBias:  bound(want.DBias, plain.DBias, factor(2), p.Bias.DType.Eps()/2, terms.DBias, most.DBias),
		DSinks: max(bound(want.DSinks, plain.DSinks, 4, roundoff32, terms.DSinks, most.DSinks), roundoff32*terms.DSinks),
	}
}

// terms returns the size of what cancels in each sum, dP or Delta times what
// multiplies it.
func (s *GradientScope) terms(p problem.Problem) GradientBound {
	scale := math.Abs(p.EffectiveScale())
	return GradientBound{
		DQ:     scale * s.K * s.DP,
		DK:     scale * s.Q * s.DP * s.KeyWeight,
		DBias:  s.DP * s.BiasWeight,
		DSinks: (s.DP + s.DLSE) * s.SinkWeight,
	}
}

// gradientCeilings bounds what GradientBounds can come to when PlainBackward is
// right. With u the roundoff of float32 and half that of DType, for each weight P
//
//	weight  weightBound + lseBound         P = exp(S - LSE) is off by that much, relatively
//	dP      2*sqrt(value_dim)*u * DP       a sum of value_dim products
//	Delta   that, and half * DP            O is rounded to DType
//	slope   2*(...)                        1 - tanh(x)² is off by twice what tanh(x) is, and rounds
//	dS      (2*DP + DLSE) * (weight + slope) + what dP and Delta are off by
//	dX      half * (2*DP + DLSE)           dX is rounded to DType
//
// and a sum over n weights rounds by 2*sqrt(n)*u times its size. The weights of a row
// sum up to 1, those of a key to KeyWeight, and so on. Below 2^-14 float16 has steps
// of 2^-24 whatever the size: n weights add 2^-25 each.
func gradientCeilings(s GradientScope, p problem.Problem) GradientBound {
	const u = roundoff32
	half, scale := p.DType.Eps()/2, math.Abs(p.EffectiveScale())
	weight := weightBound(u, s.Scope, p) + lseBound(u, []float64{s.LSE}, s.Scope, p)
	sum := func(n int) float64 { return 2 * math.Sqrt(float64(n)) * u }
	size := 2*s.DP + s.DLSE // of dS, for a weight of 1
	slope := 0.0
	if p.Softcap != 0 {
		slope = 2 * u * ((2*math.Sqrt(float64(p.HeadDim))+4)*s.Product/p.Softcap + 16)
	}
	off := size*(weight+slope) + s.DP*(2*sum(p.ValueHeadDim())+half)
	rows := p.SeqQ * p.NumHeads / p.NumKVHeads
	steps := 0.0
	if p.DType == dtype.Float16 {
		steps = 0x1p-25
	}
	all := rows * p.Batch // at most, of an element of a bias that all share
	all *= p.NumKVHeads
	return GradientBound{
		DQ:     4 * (scale*s.K*(off+size*(sum(p.SeqKV)+2*half)+steps*float64(p.SeqKV)) + steps),
		DK:     4 * (scale*s.Q*(s.KeyWeight*(off+size*(sum(rows)+2*half))+steps*float64(rows)) + steps),
		DV:     4 * (s.DO*(p.Dropout.KeepScale()*s.KeyWeight*(weight+sum(rows)+2*half)+steps*float64(rows)) + steps),
		DBias:  4 * (s.BiasWeight*(off+size*(sum(all)+p.Bias.DType.Eps()/2)) + steps),
		DSinks: 4 * s.SinkWeight * (off + size*sum(all)),
	}
}
