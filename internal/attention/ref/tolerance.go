package ref

import (
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
)

// A Bound is the largest absolute error that O and LSE may have on one
// problem, in the maximum norm.
type Bound struct{ O, LSE float64 }

// roundoff32 is the unit roundoff of float32: the largest relative error of one rounded operation.
const roundoff32 = 0x1p-24

// A Scope holds the magnitudes that bounds are derived from.
type Scope struct {
	// Product bounds |Scale * q*k|: |Scale| * max|q| * max|k| over rows,
	// Euclidean norms (Cauchy-Schwarz).
	Product float64
	// Logit bounds |S|: Product, or Softcap if that is less, and the largest
	// |bias| that is finite and slope * distance; or a larger |sink|.
	Logit float64
	// V is the largest |v|, over 1-p with dropout.
	V float64
}

// Measure returns the magnitudes of a problem's inputs.
func Measure[T Float](in Inputs[T], p attention.Problem) Scope {
	if p.Quant != dtype.NoQuant {
		in = in.Quantised(p).quant.in
	}
	s := Scope{Product: math.Abs(p.EffectiveScale()) * longest(in.Q, p.HeadDim) * longest(in.K, p.HeadDim)}
	s.Logit = s.Product
	if p.Softcap != 0 {
		s.Logit = min(s.Logit, p.Softcap)
	}
	// Positions are at most the longer of the sequences apart.
	s.Logit += largest(in.Bias) + largest(in.ALiBiSlopes)*float64(max(p.SeqQ, p.SeqKV))
	s.Logit = max(s.Logit, largest(in.Sinks))
	s.V = largest(in.V) * p.Dropout.KeepScale()
	return s
}

// longest returns the largest Euclidean norm of rows of d elements.
func longest[T Float](x []T, d int) float64 {
	most := 0.0
	for i := 0; i+d <= len(x); i += d {
		sum := 0.0
		for _, e := range x[i : i+d] {
			sum += float64(e) * float64(e)
		}
		most = max(most, sum)
	}
	return math.Sqrt(most)
}

// largest returns the largest magnitude that is finite.
func largest[T Float](x []T) float64 {
	most := 0.0
	for _, e := range x {
		if !math.IsInf(float64(e), 0) {
			most = max(most, math.Abs(float64(e)))
		}
	}
	return most
}

// PlainBound returns the bound for a kernel that stores p.DType and sums in float32. Want and
// plain are O of Forward and Plain, lse is LSE of Forward.
//
//	|O - want|   <= times*max|plain - want| + 2*max|fl(want + 0.3) - 0.3 - want|
//	|LSE - want| <= lseBound(roundoff of float32)
//
// The rule for O is FlashAttention's. The first term is the error that the storage type costs a
// plain program on the same inputs. It is multiplied by times, since a kernel sums in another order.
// In the second term fl rounds to p.DType. It keeps the bound above the rounding of a single
// result where plain is exact by luck or by construction (one key, O = V).
//
// Times is 2 for float16 and bfloat16, where the rounding of P and O dominates: over 60 seeds of
// nine shapes, float32 tiles in Go never needed more than 0.55 of the bound. For float32 it is 4, the
// project's promise for float32. Plain's error is then a few units in the last place of a few
// sums, its maximum over a small problem varies by more than 2, and exp2 is right to half a unit
// in Go but to three or more on a device. With times 2 those tiles failed 4 of 3240 such runs
// (worst 1.19 of the bound), and 63 (worst 1.80) with an exp2 off by up to 4 units.
//
// In float32 plain's error counts as one rounding of the largest O at least. With one key plain
// is exact, as exp(0) = 1, while a device's exp2 is not quite 1 and rounds in P*V, in 1/l and in
// their product (an H200 was off by one unit in the last place, which is the bound without this).
// Three errors of all weights are added, as in GradientBounds. The first is the rounding of the
// largest LSE: scores that differ by round numbers, such as multiples of a slope, are exact in
// plain but not in a kernel, which computes them to the base 2 (scores of 50 with slopes of 1/16
// were off by half a unit of 72 in the last place, and plain by a tenth of that). The second is
// Softcap's, which multiplies a tanh that is right to a rounding near 1. The third is the part of
// the largest score that matrix units lose by truncation. Products that cancel make a small LSE of
// large parts (cancelled).
//
// For the 16-bit formats plain's error counts as a quarter of their Eps of the largest O at
// least, the average rounding of P where one key outweighs all others. In plain that is one
// random number, which may be small (an H100 was off by one step of float16 where plain was off
// by a fifth of one). Plain's error also counts as the part of the largest score that truncating
// matrix units lose, u for each eight products, as in GradientBounds. The rounding of P is larger
// until scores are in the hundreds.
//
// A broken Plain must not excuse a broken kernel, so the bound for O never exceeds ceiling.
func PlainBound(want, plain, lse []float64, s Scope, p attention.Problem) Bound {
	off := guard.Off(plain, want)
	rounding, half := 0.0, roundoff32*(1+max(largest(lse), cancelled(s))+p.Softcap+truncated(largest(lse), s, p))
	if p.DType != dtype.Float32 {
		half = p.DType.Eps()/4 + float64(p.HeadDim)/8*roundoff32*largest(lse)
	}
	for _, x := range want {
		if !math.IsInf(x, 0) {
			off = max(off, half*math.Abs(x))
		}
		y := float64(p.DType.Round(float32(x + 0.3)))
		if d := math.Abs(y - 0.3 - x); !math.IsInf(d, 0) { // fl may overflow
			rounding = max(rounding, d)
		}
	}
	return Bound{
		O:   min(times(p)*off+2*rounding, ceiling(s, p)),
		LSE: lseBound(roundoff32, lse, s, p),
	}
}

// cancelled returns what the sum of a score's products is off by, in quarters of a roundoff, as float32
// bounds count an error four times. Head_dim products of random sign have partial sums of up to
// Product / sqrt(head_dim), and each rounds: 0.2 roundoffs of Product in all. (On an H200 O was off by
// 16 roundoffs where LSE was 1.3 and Product 174.)
func cancelled(s Scope) float64 { return s.Product / 20 }

// truncated returns the part of the largest score that truncating matrix units lose, in quarters of
// a roundoff, as float32 bounds count an error four times: a roundoff of what they have added up so
// far, half of the score on average, for each eight products. Up to head_dim 64 that is within the
// rest. (On an H200 dV of head_dim 256 was off by 40 roundoffs, where LSE was 7.)
func truncated(lse float64, s Scope, p attention.Problem) float64 {
	return float64(max(p.HeadDim-64, 0)) / 64 * min(lse, s.Product)
}

func times(p attention.Problem) float64 {
	if p.DType == dtype.Float32 {
		return 4
	}
	return 2
}

// ceiling bounds what PlainBound can come to when Plain is right:
//
//	|plain - want| <= V * (2*weights    P is off by that much, relatively, and so is its sum
//	                       + Eps/2      P is rounded to DType, relatively
//	                       + sum        float32 sum of P*V
//	                       + Eps/2)     O is rounded to DType; |O| <= V
//	|fl(want+0.3)-0.3-want| <= (V + 0.3) * Eps/2
//
// Below 2^-14 float16 has steps of 2^-24 whatever the size: seq_kv values of P
// then add 2^-25 * V each.
func ceiling(s Scope, p attention.Problem) float64 {
	half := p.DType.Eps() / 2
	n := terms(p)
	off := s.V * (2*weightBound(roundoff32, s, p) + half + 2*math.Sqrt(n)*roundoff32 + half)
	if p.DType == dtype.Float16 {
		off += 0x1p-25 * n * s.V
	}
	return times(p)*off + 2*(s.V+0.3)*half
}

// terms returns how many terms the sum of a row has.
func terms(p attention.Problem) float64 {
	if p.Sinks {
		return float64(p.SeqKV) + 1
	}
	return float64(p.SeqKV)
}

// weightBound bounds the relative error of exp(S), hence of P, in arithmetic
// of unit roundoff u. An absolute error of S is a relative error of exp(S).
//
//	2*sqrt(head_dim) * Product  sum of head_dim products: every partial sum is at most Product and
//	                            rounds by u; signs are random, so the errors add like a random walk; 2 for its tail.
//	                            The slope of a softcap is 1 at most: it makes no error larger
//	4 * Logit                   Scale, Scale*log2(e), their product with S, and S - m round by u each; so
//	                            do the factors, the products and the sums of bias and ALiBi
//	12 * Softcap                tanh(x) = (1-t)/(1+t), t = exp2(y): t may be off by (3 + 2|y|)*2u (see below) of
//	                            itself, which is 6u at most, and tanh by 2/(1+t)^2 times that; a
//	                            division by 5u more
//	2 * (3 + 2*log2(seq_kv))    exp2 may be off by 3 + 2|x| units in the last place (Vulkan
//	                            specification, precision of SPIR-V instructions), 2u each; the
//	                            P-weighted mean of |x| is at most log2(seq_kv), the entropy of P
func weightBound(u float64, s Scope, p attention.Problem) float64 {
	return u * (2*math.Sqrt(float64(p.HeadDim))*s.Product + 4*s.Logit + 12*p.Softcap + 2*(3+2*math.Log2(terms(p))))
}

// lseBound bounds the absolute error of LSE in arithmetic of unit roundoff u.
//
//	weightBound            a relative error of every exp(S) is an absolute error of the log of their sum
//	2*sqrt(seq_kv) * u     the sum of seq_kv terms, as in weightBound
//	8 * u                  log may be off by 2^-21 where its result is near 0 (same specification)
//	3 * max|LSE| * u       m*ln(2): product, constant, and the sum with log(l)
func lseBound(u float64, lse []float64, s Scope, p attention.Problem) float64 {
	return weightBound(u, s, p) + u*(2*math.Sqrt(terms(p))+8+3*largest(lse))
}
