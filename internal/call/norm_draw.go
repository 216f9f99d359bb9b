package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/norm"
)

// kernelNorm is the row of All.
func kernelNorm() Kernel {
	k := Kernel{
		Name: "norm", Weight: 2, New: func() Call { return &Norm{} }, Draw: drawNorm, Backward: "norm.Backward",
		Contract: Contract{norm.Problem{Rows: 3, Cols: 5, Eps: 1e-5}, norm.Forward, norm.Backward, norm.Choose, norm.Supports, norm.Workspace, nil},
	}
	for i := range 4 {
		p := norm.Problem{Rows: 5, Cols: 21, Eps: 1e-3, RMS: i%2 > 0, Residual: i/2 > 0}
		k.Gradients = append(k.Gradients, &Norm{Problem: p, Save: true, DResidual: true})
	}
	return k
}

// drawNorm draws a normalization of rows.
func drawNorm(family, rng *rand.Rand, s Space) Call {
	p := &Norm{}
	var ok bool
	if p.DType, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	if family.IntN(2) == 0 {
		p.WeightDType = p.DType
	}
	p.RMS, p.Residual, p.Backward = family.IntN(2) == 0, family.IntN(3) == 0, family.IntN(2) == 0
	if p.Backward {
		p.DResidual = p.Residual && family.IntN(2) == 0
	} else {
		p.Save = family.IntN(4) > 0
	}
	p.Data = DrawData(family, rng)
	p.Magnitude = min(p.Magnitude, Most(p.DType)/p.Largest()/4)
	p.Second = min(p.Second, 100) // so that y is within float16
	p.Rows, p.Cols = Size(rng, 2000), Size(rng, 3000)
	if rng.IntN(4) == 0 {
		p.Cols = Size(rng, 20000) // longer than the registers of a workgroup
	}
	wide := rng.IntN(8) == 0 && !s.Soft
	if wide {
		p.Rows, p.Cols = 4000+rng.IntN(8000), Size(rng, 300)
	}
	cost := 40.0
	if wide {
		cost = 10
	}
	Within(rng, s.Budget(rng), func() float64 { return cost * float64(p.Rows) * float64(p.Cols) }, &p.Rows, &p.Cols)
	p.Config = drawNormConfig(family, s)
	if p.Config != nil && p.Config.Loads > 0 { // no longer than what invocations keep
		team := p.Config.Threads
		if p.Config.SubgroupTeam {
			team = int(TypicalCaps(s.Soft).SubgroupSize)
		}
		if longest := p.Config.Loads * team * 16 / p.DType.Size(); p.Cols > longest {
			p.Cols = max(1, longest-rng.IntN(min(longest, 20)))
		}
	}
	size := OrOne(p.Magnitude)
	p.Eps = []float64{1e-5, 1e-6, 1e-3, 0}[rng.IntN(4)]
	if p.Eps == 0 && (!p.RMS || p.Kind == ZeroKind || p.DType == dtype.Float16) {
		p.Eps = 1e-5
	}
	if p.DType == dtype.Float16 || rng.IntN(2) == 0 {
		p.Eps *= size * size // eps is a part of the variance, and rstd at most 1000 by a deviation
	}
	switch rng.IntN(16) {
	case 0, 1:
		p.Mean = TenTo(rng, 0, 1.5)
		p.Mean = min(p.Mean, math.Max(1, Most(p.DType)/p.Largest()/size/4))
	case 2:
		p.Equal = p.Eps > 0
	}
	return p
}

// drawNormConfig draws a configuration, or none.
func drawNormConfig(family *rand.Rand, s Space) *norm.Config {
	if family.IntN(2) == 0 {
		return nil
	}
	caps := TypicalCaps(s.Soft)
	for range 100 {
		c := norm.Config{
			Threads: 32 << family.IntN(6), SubgroupTeam: family.IntN(2) == 0, Loads: family.IntN(5), Rows: 1 << family.IntN(3),
			Ahead: family.IntN(2) == 0, Groups: 1 + family.IntN(6), Reload: family.IntN(2) == 0,
		}
		if !c.SubgroupTeam {
			c.Rows = 1
		}
		if s.Soft { // lavapipe's time to compile grows with both
			c.Loads, c.Rows = min(c.Loads, 2), min(c.Rows, 2)
		}
		if c.Feasible(caps, norm.Problem{Rows: 1, Cols: 1, WeightDType: dtype.Float32}) == nil {
			return &c
		}
	}
	return nil
}
