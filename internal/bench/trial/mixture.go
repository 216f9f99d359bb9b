package trial

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/pipelines/mixture"
)

// drawMixture draws a mixture whose components are heads.
func drawMixture(family, rng *rand.Rand, s call.Space) *call.Mixture {
	p := &call.Mixture{Direction: call.Direction{Backward: family.IntN(2) == 0}, Outputs: family.IntN(4) == 0}
	var ok bool
	if p.Impl, ok = s.Impl(family, gemmImpls()...); !ok {
		return nil
	}
	p.Direct = !p.Backward && p.Impl != "scalar" && family.IntN(2) == 0
	if p.Direct {
		half := s
		half.DTypes = intersect(s.DTypes, dtype.Float16, dtype.BFloat16)
		if len(half.DTypes) > 0 {
			s = half
		}
	}
	x, ok := drawPerceptron(family, rng, s, 1+rng.IntN(12), 3, p.Backward, &p.Data)
	if !ok {
		return nil
	}
	p.Problem = mixture.Problem{Tokens: x.Tokens, Heads: x.Heads, In: x.In, Hidden: x.Hidden, DType: x.DType, Grad: x.Grad}
	if p.Magnitude != 0 {
		p.Second = call.TenTo(rng, -2, 0.3)
		p.Magnitude = max(p.Magnitude, 0.01) // w1 is in float16
	}
	switch family.IntN(4) {
	case 0:
		p.LogP = true
	case 1:
		p.Loss = true
	default:
		p.LogP, p.Loss = true, true
	}
	p.Groups, p.HeadsAtATime = rng.IntN(4), rng.IntN(4)
	if p.Backward && family.IntN(2) == 0 {
		p.DLoss = float64(float32(rng.NormFloat64() * 10))
	}
	if !p.Direct {
		p.Impl = softImpl(family, s, p.Impl, p.DType)
		return p
	}
	p.TransA, p.TransB = family.IntN(3) == 0, family.IntN(3) == 0
	if p.Impl == "auto" || family.IntN(3) == 0 {
		return p
	}
	caps := call.TypicalCaps(s.Soft)
	for range 100 {
		c := engine.Config{}
		drawMatrixTiles(family, s, &c)
		c.AlignRows = family.IntN(2) == 0
		q := *p
		if q.Config = c.String(); q.DType == dtype.BFloat16 && s.Soft {
			q.DType = dtype.Float16
		}
		if (&called{&q}).Supports(caps) == nil {
			p.Config = q.Config
			break
		}
	}
	return p
}
