package ref

import (
	"math"

	"github.com/flashvk/flashvk/attention"
)

// A scorer turns the products of one row of Q with keys into scores,
//
//	x = factor * dot(Q[i], K[j])
//	x = unit * Softcap * tanh(x)              if Softcap is on; factor is Scale/Softcap then
//	x = x + unit*Bias[i,j] - unit*slope*|i + shift - j|
//
// or -Inf where the row does not see the key. Unit is 1 for natural exponents
// and log2(e) for binary ones; without a Softcap factor is unit*Scale. Every
// operation is one of F.
type scorer[F, T Float] struct {
	factor  F
	cap     F // unit*Softcap, 0 for none
	unit    F
	slope   F      // unit*slope
	bias    []T    // (seq_kv) of the row, nil for none
	keyMask []bool // (seq_kv) of the batch, nil for none
	at      int    // the row's own key
	lo, hi  int    // keys that the mask shows
}

func newScorer[F, T Float](in *Inputs[T], p attention.Problem, mask attention.Mask, r Row, unit float64) scorer[F, T] {
	s := scorer[F, T]{factor: F(unit * p.EffectiveScale()), unit: F(unit), at: r.Row + mask.Shift}
	s.lo, s.hi = mask.Keys(r.Row)
	if p.Softcap != 0 {
		s.factor, s.cap = F(p.EffectiveScale()/p.Softcap), F(unit*p.Softcap)
	}
	switch p.ALiBi {
	case attention.ALiBiPerHead:
		s.slope = F(unit * float64(in.ALiBiSlopes[r.Head]))
	case attention.ALiBiPerBatchHead:
		s.slope = F(unit * float64(in.ALiBiSlopes[r.Batch*p.NumHeads+r.Head]))
	}
	if p.Bias.On {
		s.bias = in.Bias[biasAt(p, r):][:p.SeqKV]
	}
	if p.KeyMask {
		s.keyMask = in.KeyMask[r.Batch*p.SeqKV:][:p.SeqKV]
	}
	return s
}

// sees reports whether the row sees key j.
func (s *scorer[F, T]) sees(j int) bool {
	return s.lo <= j && j < s.hi && (s.keyMask == nil || s.keyMask[j]) &&
		(s.bias == nil || !math.IsInf(float64(s.bias[j]), -1))
}

// score returns the score of key j, x being factor times the product. What is
// hidden is not looked at: it may be NaN. The conversions forbid fused multiply-add, which
// some architectures' compilers would use.
func (s *scorer[F, T]) score(x F, j int) F {
	if !s.sees(j) {
		return F(math.Inf(-1))
	}
	if s.cap != 0 {
		x = s.cap * tanh(x)
	}
	if s.bias != nil {
		x += F(s.unit * F(s.bias[j]))
	}
	if s.slope != 0 {
		x -= F(s.slope * F(max(s.at-j, j-s.at)))
	}
	return x
}

// derivative returns the derivative of a score with respect to Scale times the
// product, where x is factor times the product: 1 without a Softcap, and with one
//
//	1 - tanh(x)² = 4t / (1 + t)²,  t = exp(-2*|x|)
func (s *scorer[F, T]) derivative(x F) F {
	if s.cap == 0 {
		return 1
	}
	t := F(math.Exp(-2 * math.Abs(float64(x))))
	return 4 * t / F((1+t)*(1+t))
}

// tanh returns, in float64, what math.Tanh does, and in float32 what a plain
// program makes of exponentials,
//
//	tanh(x) = sign(x) * (1 - t) / (1 + t),  t = exp(-2*|x|)
//
// whose error is that of a rounding near 1 however small x is.
func tanh[F Float](x F) F {
	if _, ok := any(x).(float32); !ok {
		return F(math.Tanh(float64(x)))
	}
	t := F(math.Exp(-2 * math.Abs(float64(x))))
	return F(math.Copysign(float64((1-t)/(1+t)), float64(x)))
}

// sink returns unit times the sink of a head, -Inf if there is none.
func sink[T Float](in *Inputs[T], p attention.Problem, head int, unit float64) float64 {
	if !p.Sinks {
		return math.Inf(-1)
	}
	return unit * float64(in.Sinks[head])
}

// dropRow sets the weights of a row that dropout drops to 0 and scales the
// others. P[j] is the weight of key first+j.
func dropRow[F Float](P []F, first int, p attention.Problem, r Row) {
	if !p.Dropout.On() {
		return
	}
	keep := F(p.Dropout.KeepScale())
	row := p.DropoutRow(r.Batch, r.Head, r.Row)
	for j := range P {
		P[j] *= keep
		if !row.Kept(first + j) {
			P[j] = 0
		}
	}
}
