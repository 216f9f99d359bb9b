package ref

import (
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
)

// A GradientBound is the largest absolute error that each gradient may have on
// one problem, in the maximum norm.
type GradientBound struct{ DQ, DK, DV, DBias, DSinks float64 }

// A GradientScope holds the magnitudes that the bounds of gradients are derived
// from. Rows are measured by their Euclidean norm.
type GradientScope struct {
	Scope
	// DP bounds |dP| and |Delta|: the largest row of dO times the largest row of V, over 1-p
	// with dropout (Cauchy-Schwarz; O is a mean of rows of V).
	DP float64
	// DLSE, Q, K and DO are the largest elements, LSE the largest that is finite.
	DLSE, Q, K, DO, LSE float64
	// Score is the largest P * (|product| + |bias| + |slope * distance|) of a score.
	// Scored is the largest of that times |dP| + |Delta|, and Valued times |dO| of the row.
	Score, Scored, Valued float64
	// Parts is the largest P * the Euclidean norm of the products of a score, of float32.
	Parts float64
	// Term is the largest P * (|dP| + |Delta|) of a row and a key, KeyTerm the largest root of the sum
	// of their squares over the rows that read a key.
	Term, KeyTerm float64
	// DS is the largest |dS|, P * |dP - Delta|.
	DS float64
	// KeyRounded and BiasRounded are the deviations of the sums of roundings of dX and O that a key, with |Q|, and an element of the bias get.
	KeyRounded, BiasRounded float64
	// KeyWeight is the largest sum of weights P that a key gets, from all rows and heads that
	// read the key; BiasWeight the largest sum over the scores that share an element of the
	// bias; SinkWeight the largest sum that a sink gets.
	KeyWeight, BiasWeight, SinkWeight float64
}

// GradientBounds returns the bounds for a kernel that stores p.DType and sums in
// float32, which is given O and LSE rounded to their formats. Want and plain
// are what Backward and PlainBackward compute.
//
//	|got - want| <= times * max(max|plain - want|, half * max|want|)
//
// half being the roundoff of the gradient's format. As in PlainBound, plain's
// error is the error of the format on these very inputs; plain's error counts as one rounding of
// the largest result at the least, where plain is exact by luck. For float32 plain's error also
// counts as the rounding of the largest LSE, which is an error of exp(S - LSE)
// and so of all weights: u*max|LSE| of the largest result, and the part of the largest score that
// matrix units lose (truncated). A bias or a slope may leave a small LSE of large products, which
// round before they meet: of a score with a weight, what it adds up counts where that is more. That
// times the weight is what a small weight is off by, beside a sink or in a row of other keys, and so
// dV and dX from it alone. The products of a score may cancel, too (cancelled).
// Each is of parts that are right to 2^-22 together, four roundoffs, of random sign: the Euclidean norm of the products counts, which is all
// of the score where one is an outlier (Parts; with that at LSE 500, dV of an H200 was off by 5.7 roundoffs of it). In 16 bits matrix
// units lose u of a score, on average, each time they add eight products or more to the score, which counts in the same way.
//
// times is 4 for dQ and 2 for dK, dV and dBias in 16 bits, the factors of
// PyTorch's tests. For float32 it is 4, the project's promise, as explained at
// PlainBound; for dSinks, which are float32 in every format, it is 4 always, with the rounding
// of LSE, and one rounding of the largest that its terms can be is allowed, since the largest of a few errors, one for each head,
// says little about how large they may be.
//
// In dP - Delta large terms cancel, in plain at times exactly, as for a row that
// sees one key, and in a kernel that sums in another order not. The error of a float32
// sum of n products of random sign is about 0.4*sqrt(n)*u times the sum's size, and matrix
// units lose n/8*u of it, as above: that much of the largest P * (|dP| + |Delta|) counts as
// plain's error at the least. All rows that read a key have such an error in its dK, of random sign: a
// quarter of the sum's, over those rows, times the largest |Q| counts at the least. (Of 12,288 rows
// with one key, dK of an H200 was off by 1.07 of what the largest alone allowed.)
//
// The P * dLSE of scores that share an element of the bias may cancel in the sum, and their errors
// do not: each is off by the roundings of its weight and of LSE, and n of random sign by their root
// mean square. The squares of weights sum up to less than the weights do, so that sqrt(BiasWeight)
// times a quarter of these roundings counts as plain's error of dBias at the least, as for dSinks.
//
// One rounding of the largest dS to a 16-bit format counts, too: where the dX of one row add up to
// 0, as with equal keys, the sum of their roundings is one random number, which may be small in
// plain alone. So it does for dBias without a Softcap, which may be a sum of dX, as plain's is. And
// for float32 with a Softcap, one rounding of that: it multiplies a tanh that is right to a
// rounding near 1. What a score is off by before the cap, by Softcap, moves the slope of tanh by up
// to twice as much, relatively, and dQ and dK with it: parts of float32 are right to 2^-22, four
// roundoffs, of each of head_dim products, which add up to Product at the most and whose errors
// have random signs (slopeError).
//
// The dX of rows that read a key, or share an element of the bias, are rounded each, and so is O in each Delta. Where they cancel, the sum
// of these roundings is one random number, too: in plain they may cancel, and a kernel that leaves dX in float32 has those of O alone. A
// rounding is a roundoff over sqrt(3) at most, on average, and that of O is known: the root of the sum of their squares counts at the least.
//
// Weights and dX below 2^-14 are rounded to steps of 2^-24 in float16: the rounding of one, by
// 2^-25, counts as plain's error at the least. Where a large Scale meets a small Q, a
// dX of few steps makes all of dK, and falls on another step in a kernel than in plain.
// Weights of float32 on matrices are right to 2^-40 (lib/tile_bwd_f32x2.glsl), which is all of dV
// where a sink has nearly all the weight: that counts likewise, times the factor of dropout, by
// which dV is multiplied in the end. The kept weights of a key with equal scores are off by the same,
// so that their errors add up as the dO of its rows do, n numbers of random sign: sqrt(n) times one.
//
// A number below 2^-126 may be 0 on a device, as it is not a normal float32: results, weights (of a
// sink, or of keys beside a key that outweighs them) and dX. All terms of a sum may be 0 so, beyond
// the other errors.
//
// A broken PlainBackward must not excuse a broken kernel, so no bound exceeds
// its ceiling (gradientCeilings).
func GradientBounds(want, plain Gradients, s GradientScope, p attention.Problem) GradientBound {
	half := p.DType.Eps() / 2
	if p.DType == dtype.Float32 {
		half *= 1 + max(s.LSE, s.Score, cancelled(s.Scope)) + s.Parts + p.Softcap + truncated(s.LSE, s.Scope, p)
	} else {
		half += float64(p.HeadDim) / 8 * roundoff32 * s.LSE
	}
	scale := math.Abs(p.EffectiveScale())
	n := float64(p.ValueHeadDim())
	cancel := roundoff32 * max((0.4*math.Sqrt(n)+n/8)*s.Term, s.Scored)
	most := gradientCeilings(s, p)
	bound := func(want, plain []float64, times, half, least, ceiling float64) float64 {
		return min(times*max(guard.Off(plain, want), half*largest(want), least), ceiling)
	}
	step, dX, keep := 0.0, cancel, p.Dropout.KeepScale()
	weights := 1.0 // errors of weights that dV sums up
	if p.DType != dtype.Float32 {
		dX = max(dX, p.DType.Eps()/2*s.DS)
	}
	switch p.DType {
	case dtype.Float16:
		step = 0x1p-25
		dX = max(dX, step)
	case dtype.Float32:
		step = 0x1p-40
		weights = keep * math.Sqrt(float64(p.SeqQ*p.NumHeads/p.NumKVHeads)/keep)
	}
	keyed := max(s.Q*max(dX, 0.1*math.Sqrt(n)*roundoff32*s.KeyTerm), s.KeyRounded)
	sloped := half + slopeError(&s, p)
	size := 1 + 2*s.DP + s.DLSE // of dX, for a weight of 1, or of what is rounded itself
	rows := float64(p.SeqQ) * float64(p.NumHeads)
	shared := max(cancel, roundoff32/4*(1+s.LSE)*s.DLSE*math.Sqrt(s.BiasWeight))
	if p.Softcap == 0 {
		shared = max(shared, dX, s.BiasRounded)
	}
	flushed := func(factor, terms float64) float64 { return 0x1p-126 * (1 + factor*terms) }
	return GradientBound{
		DQ:     bound(want.DQ, plain.DQ, 4, sloped, scale*s.K*dX, most.DQ) + flushed(scale*s.K*size, float64(p.SeqKV)),
		DK:     bound(want.DK, plain.DK, times(p), sloped, scale*keyed, most.DK) + flushed(scale*s.Q*size, rows),
		DV:     bound(want.DV, plain.DV, times(p), half, max(s.DO*step*weights, roundoff32*s.Valued*keep), most.DV) + flushed(s.DO, rows),
		DBias:  bound(want.DBias, plain.DBias, times(p), max(half, p.Bias.DType.Eps()/2), shared, most.DBias) + flushed(size, rows*float64(p.Batch)),
		DSinks: bound(want.DSinks, plain.DSinks, 4, roundoff32*(1+s.LSE), roundoff32/4*(s.DP+s.DLSE)*s.SinkWeight, most.DSinks) + flushed(size, rows*float64(p.Batch)),
	}
}

// slopeError returns the relative float32 error of the slope of a Softcap, in quarters, as float32
// bounds count an error four times.
func slopeError(s *GradientScope, p attention.Problem) float64 {
	if p.Softcap == 0 || p.DType != dtype.Float32 {
		return 0
	}
	return 2 * roundoff32 / math.Sqrt(float64(p.HeadDim)) * s.Product / p.Softcap
}

// gradientCeilings bounds the results of GradientBounds when PlainBackward is
// right. With u the roundoff of float32 and half the roundoff of DType, for each weight P
//
//	weight  weightBound + lseBound         P = exp(S - LSE) is off by that much, relatively
//	dP      2*sqrt(value_dim)*u * DP       a sum of value_dim products
//	Delta   that, and half * DP            O is rounded to DType
//	slope   2*(...)                        1 - tanh(x)² is off by twice what tanh(x) is, and rounds
//	dS      (2*DP + DLSE) * (weight + slope) + what dP and Delta are off by
//	dX      half * (2*DP + DLSE)           dX is rounded to DType
//
// and a sum over n weights rounds by 2*sqrt(n)*u times its size. The weights of a row
// sum up to 1, the weights of a key to KeyWeight, and so on. Below 2^-14 float16 has steps
// of 2^-24 whatever the size: each of n weights adds 2^-25 to dV, a weight in float32 2^-40, times
// the factor of dropout.
// dBias is a sum of dX, rounded once more to its format.
func gradientCeilings(s GradientScope, p attention.Problem) GradientBound {
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
	weightSteps := steps
	if p.DType == dtype.Float32 {
		weightSteps = 0x1p-40
	}
	all := rows * p.Batch // at most, of an element of a bias that all share
	all *= p.NumKVHeads
	return GradientBound{
		DQ:     4 * (scale*s.K*(off+size*(sum(p.SeqKV)+2*half)+steps*float64(p.SeqKV)) + steps),
		DK:     4 * (scale*s.Q*(s.KeyWeight*(off+size*(sum(rows)+2*half))+steps*float64(rows)) + steps),
		DV:     4 * (s.DO*(p.Dropout.KeepScale()*(s.KeyWeight*(weight+sum(rows)+2*half)+weightSteps*float64(rows))) + steps),
		DBias:  4 * (s.BiasWeight*(off+size*(sum(all)+half+p.Bias.DType.Eps()/2)) + steps*float64(1+all)),
		DSinks: 4 * s.SinkWeight * (off + size*sum(all)),
	}
}
