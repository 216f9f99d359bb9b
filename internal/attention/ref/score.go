package ref

import (
	"math"

	"gonum.org/v1/gonum/blas/blas64"

	"github.com/flashvk/flashvk/attention"
)

// A scorer turns the products of one row of Q with keys into scores,
//
//	x = factor * dot(Q[i], K[j])
//	x = Softcap * tanh(x)              if Softcap is on; factor is Scale/Softcap then
//	x = x + Bias[i,j] - slope*|i + shift - j|
//
// or -Inf where the row does not see the key. Every operation is one of F.
type scorer[F, T Float] struct {
	factor  F
	cap     F // 0 for none
	slope   F
	bias    []T    // (seq_kv) of the row, nil for none
	keyMask []bool // (seq_kv) of the batch, nil for none
	at      int    // the row's own key
	lo, hi  int    // keys that the mask shows
}

func newScorer[F, T Float](in *Inputs[T], p attention.Problem, mask attention.Mask, r Row) scorer[F, T] {
	s := scorer[F, T]{factor: F(p.EffectiveScale()), at: r.Row + mask.Shift}
	s.lo, s.hi = mask.Keys(r.Row)
	if p.Softcap != 0 {
		s.factor, s.cap = F(p.EffectiveScale()/p.Softcap), F(p.Softcap)
	}
	switch p.ALiBi {
	case attention.ALiBiPerHead:
		s.slope = F(in.ALiBiSlopes[r.Head])
	case attention.ALiBiPerBatchHead:
		s.slope = F(in.ALiBiSlopes[r.Batch*p.NumHeads+r.Head])
	}
	if p.Bias.On {
		s.bias = in.Bias[biasAt(p, r):][:p.SeqKV]
	}
	if p.KeyMask {
		s.keyMask = in.KeyMask[r.Batch*p.SeqKV:][:p.SeqKV]
	}
	return s
}

// biasAt returns the position in a bias of the first key of row r.
func biasAt(p attention.Problem, r Row) int {
	at, shape := 0, p.BiasShape()
	for axis, i := range []int{r.Batch, r.Head, r.Row} {
		if n := shape[axis]; n > 1 {
			at = at*n + i
		}
	}
	return at * p.SeqKV
}

func (s *scorer[F, T]) sees(j int) bool {
	return s.lo <= j && j < s.hi && (s.keyMask == nil || s.keyMask[j]) &&
		(s.bias == nil || !math.IsInf(float64(s.bias[j]), -1))
}

// score returns the score of key j, x being factor times the product. What is hidden is not looked
// at: it may be NaN. The conversions forbid fused multiply-add.
func (s *scorer[F, T]) score(x F, j int) F {
	if !s.sees(j) {
		return F(math.Inf(-1))
	}
	x, _ = s.sum(x, j)
	return x
}

// sum returns the score of a visible key, and the sum of the magnitudes that it adds up.
func (s *scorer[F, T]) sum(x F, j int) (score F, size float64) {
	if s.cap != 0 {
		x = s.cap * tanh(x)
	}
	size = math.Abs(float64(x))
	if s.bias != nil {
		x += F(s.bias[j])
		size += math.Abs(float64(s.bias[j]))
	}
	if s.slope != 0 {
		far := F(s.slope * F(max(s.at-j, j-s.at)))
		x -= far
		size += math.Abs(float64(far))
	}
	return x, size
}

// derivative returns the derivative of a score with respect to Scale times the product, where x is
// factor times the product: 1 without a Softcap, and with one
//
//	1 - tanh(x)² = 4t / (1 + t)²,  t = exp(-2*|x|)
func (s *scorer[F, T]) derivative(x F) F {
	if s.cap == 0 {
		return 1
	}
	t := F(math.Exp(-2 * math.Abs(float64(x))))
	return 4 * t / F((1+t)*(1+t))
}

// tanh returns, in float64, what math.Tanh does, and in float32 what a plain program makes of
// exponentials,
//
//	tanh(x) = sign(x) * (1 - t) / (1 + t),  t = exp(-2*|x|)
//
// whose error is a rounding near 1 however small x is.
func tanh[F Float](x F) F {
	if _, ok := any(x).(float32); !ok {
		return F(math.Tanh(float64(x)))
	}
	t := F(math.Exp(-2 * math.Abs(float64(x))))
	return F(math.Copysign(float64((1-t)/(1+t)), float64(x)))
}

// sinkOf returns the sink of a head, -Inf if there is none.
func sinkOf[F, T Float](in *Inputs[T], p attention.Problem, head int) F {
	if !p.Sinks {
		return F(math.Inf(-1))
	}
	return F(in.Sinks[head])
}

// dot returns the sum of a[i]*b[i]; in float32, added from the first to the last.
func dot[F Float](a, b []F) F {
	if x, ok := any(a).([]float64); ok {
		return F(blas64.Implementation().Ddot(len(x), x, 1, any(b).([]float64), 1))
	}
	var sum F
	b = b[:len(a)]
	for i, x := range a {
		sum += F(x * b[i])
	}
	return sum
}

// productsNorm returns the Euclidean norm of the products that dot adds up.
func productsNorm[F Float](a, b []F) float64 {
	var sum F
	b = b[:len(a)]
	for i, x := range a {
		y := x * b[i]
		sum += F(y * y)
	}
	return math.Sqrt(float64(sum))
}

// add adds factor times x to a sum.
func add[F Float](sum []F, factor F, x []F) {
	if y, ok := any(x).([]float64); ok {
		blas64.Implementation().Daxpy(len(y), float64(factor), y, 1, any(sum).([]float64), 1)
		return
	}
	sum = sum[:len(x)]
	for e, y := range x {
		sum[e] += F(factor * y)
	}
}
