package trial

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// drawGrouped draws perceptrons that share their input, and calls of the kernels of package skinny
// that compute their outputs and gradients.
func drawGrouped(family, rng *rand.Rand, s call.Space) *call.MLP {
	p := &call.MLP{Direction: call.Direction{Backward: family.IntN(2) == 0}}
	keep := mlp.Keeps()[family.IntN(2)]
	var ok bool
	if p.Impl, ok = s.Impl(family, gemmImpls()...); !ok {
		return nil
	}
	p.Skinny = p.Impl != "scalar" && family.IntN(2) == 0
	outputs := 8
	if !p.Skinny && family.IntN(3) == 0 {
		outputs = 60
	}
	if p.Skinny {
		half := s
		half.DTypes = intersect(s.DTypes, dtype.Float16, dtype.BFloat16)
		if len(half.DTypes) > 0 {
			s = half
		}
	}
	if p.Problem, ok = drawPerceptron(family, rng, s, 1+rng.IntN(6), outputs, p.Backward, &p.Data); !ok {
		return nil
	}
	p.Keep = keep
	if !p.Skinny {
		p.Impl = softImpl(family, s, p.Impl, p.DType)
	}
	if outputs == 8 {
		p.Out = 1 + family.IntN(8) // kernels are compiled for it
	}
	p.Float32 = !p.Backward && family.IntN(3) == 0
	if !p.Skinny {
		p.Products = family.IntN(3) == 0
		p.HeadsAtATime = rng.IntN(4)
		return p
	}
	p.Config = drawSkinnyConfig(family, s, p)
	if !p.Backward || p.Keep == mlp.KeepNothing {
		p.TransA, p.TransB = family.IntN(3) == 0, family.IntN(3) == 0
		p.Alpha = []float64{0, 0, 0.5, 2, -1}[rng.IntN(5)]
	}
	return p
}

// intersect returns the formats of list that are also in some; nil is all.
func intersect(some []dtype.DType, list ...dtype.DType) (both []dtype.DType) {
	for _, t := range list {
		for _, u := range some {
			if t == u {
				both = append(both, t)
			}
		}
	}
	if some == nil {
		return list
	}
	return both
}

// drawSkinnyConfig draws a configuration, or none.
func drawSkinnyConfig(family *rand.Rand, s call.Space, p *call.MLP) string {
	if family.IntN(3) == 0 || p.Backward && p.Keep == mlp.KeepPre || p.Impl == "auto" {
		return ""
	}
	caps := call.TypicalCaps(s.Soft)
	for range 100 {
		c := engine.Config{}
		drawMatrixTiles(family, s, &c)
		c.AlignRows = family.IntN(2) == 0
		if c.PackB = !p.Backward && family.IntN(2) == 0; c.PackB {
			c.BlockK = int(caps.CoopMatShapes[0].N) * 8 / (1 + family.IntN(2))
		}
		q := *p
		if q.Config = c.String(); q.DType == dtype.BFloat16 && s.Soft {
			q.DType = dtype.Float16
		}
		if (&called{&q}).Supports(caps) == nil {
			return q.Config
		}
	}
	return ""
}
