package trial

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
)

// drawGMM draws log-probabilities of tokens under mixtures.
func drawGMM(family, rng *rand.Rand, s Space) *call.GMM {
	p := &call.GMM{Call: []string{"forward", "forward", call.GMMBackward, call.GMMBackward, call.GMMMerge}[family.IntN(5)]}
	var ok bool
	if p.DType, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	p.Grad = dtype.Some(dtype.All()[family.IntN(3)])
	switch family.IntN(4) {
	case 0:
		p.LogP = true
	case 1:
		p.Loss = true
	default:
		p.LogP, p.Loss = true, true
	}
	p.Data = drawData(family, rng)
	p.Interleaved = rng.IntN(2) == 0
	if p.Call == call.GMMBackward {
		p.Saturate = family.IntN(3) == 0
		if family.IntN(2) == 0 {
			p.DLoss = float64(float32(rng.NormFloat64() * 10))
		}
	}
	if p.Magnitude != 0 {
		p.Magnitude = min(p.Magnitude, call.Most(p.DType)/p.Largest())
		p.Second = tenTo(rng, -3, 0.4)
	}
	p.Tokens, p.Components = Size(rng, 3000), 1+rng.IntN(20)
	switch rng.IntN(8) {
	case 0:
		p.Components = Size(rng, 2000)
	case 1:
		if !s.Soft {
			p.Tokens, p.Components = 32000+rng.IntN(4000), 1+rng.IntN(10)
		}
	}
	within(rng, budget(rng, s), func() float64 { return 100 * float64(p.Tokens) * float64(p.Components) }, &p.Tokens, &p.Components)
	return p
}
