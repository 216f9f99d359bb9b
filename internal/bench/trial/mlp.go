package trial

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/fused"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// drawMLP draws a two-layer perceptron.
func drawMLP(family, rng *rand.Rand, s call.Space) *call.MLP {
	p := &call.MLP{Direction: call.Direction{Backward: family.IntN(2) == 0}}
	keep := mlp.Keeps()[family.IntN(3)]
	var ok bool
	if p.Impl, ok = s.Impl(family, gemmImpls()...); !ok {
		return nil
	}
	var config *fused.Config
	outputs := 1 << 20
	if !p.Backward && p.Impl != "scalar" && family.IntN(2) == 0 {
		keep, p.Fused, outputs = mlp.KeepNothing, mlp.FusedOn, 512
		if family.IntN(4) > 0 {
			config = drawFusedConfig(family, s)
		}
	}
	if p.Problem, ok = drawPerceptron(family, rng, s, 1, outputs, p.Backward, &p.Data); !ok {
		return nil
	}
	p.Heads, p.Keep = 0, keep
	p.Impl = softImpl(family, s, p.Impl, p.DType)
	if p.Fused == mlp.FusedOn && p.DType == dtype.Float32 {
		p.Fused, config = mlp.FusedOff, nil // it has no such kernel
	}
	if p.Fused == mlp.FusedOn {
		columns := 8 * 4 * 16 // of what the table has
		size := 16
		if s.Soft {
			size, columns = 8, 2*2*8
		}
		if config != nil {
			columns = config.Subgroups * config.TilesN * size
			p.FusedConfig = config.String()
		}
		p.Out = min(p.Out, columns)
	}
	return p
}

// drawFusedConfig draws a configuration of one kernel, or none.
func drawFusedConfig(family *rand.Rand, s call.Space) *fused.Config {
	caps, size, subgroups, tiles := call.TypicalCaps(s.Soft), 16, 8, 3
	if s.Soft {
		size, subgroups, tiles = 8, 3, 2
	}
	for range 300 {
		c := fused.Config{
			Subgroups: 1 + family.IntN(subgroups), TilesM: 1 + family.IntN(tiles), TilesN: 1 + family.IntN(tiles+1),
			HiddenM: 1 + family.IntN(tiles), HiddenN: 1 + family.IntN(2), LoadAhead: family.IntN(2), Double: family.IntN(2) == 0,
		}
		c.Ahead = c.TilesN * c.HiddenN * (1 + family.IntN(2))
		c.Shared = c.Ahead / c.HiddenN * family.IntN(4)
		if family.IntN(3) == 0 {
			c.Splits = 2 + family.IntN(3)
			c.Rows = c.TilesM * size * family.IntN(3)
		}
		if c.Feasible(caps, fused.Problem{M: 64, In: 64, Hidden: 64, N: 1, DType: dtype.Float16, Out: dtype.Float16}) == nil {
			return &c
		}
	}
	return nil
}

// drawPerceptron draws sizes, formats and data of perceptrons. A kernel takes at most `most`
// outputs.
func drawPerceptron(family, rng *rand.Rand, s call.Space, heads, most int, backward bool, d *call.Data) (p mlp.Problem, ok bool) {
	if p.DType, ok = s.DType(family, dtype.All()...); !ok {
		return p, false
	}
	if family.IntN(2) == 0 {
		p.Grad = dtype.Some(dtype.All()[family.IntN(3)])
	}
	*d = call.DrawData(family, rng)
	if d.Magnitude != 0 {
		d.Magnitude = min(d.Magnitude, call.Roomy/d.Largest())
		d.Second = call.TenTo(rng, -2, 1.5) // of pre
		if p.DType == dtype.Float16 {
			d.Magnitude = max(d.Magnitude, 4*d.Second/call.Roomy*8) // W1 is in the format
		}
	}
	p.Heads = heads
	p.Tokens, p.In, p.Hidden, p.Out = sizeOf(rng, s, 1500), sizeOf(rng, s, 300), sizeOf(rng, s, 400), min(most, sizeOf(rng, s, 300))
	passes := 8.0
	if backward {
		passes = 24
	}
	tokens := func() float64 {
		if d.Sample > 0 {
			return float64(d.Sample)
		}
		return float64(p.Tokens)
	}
	sizes := []*int{&p.Tokens, &p.In, &p.Hidden, &p.Out, &p.Heads}
	if rng.IntN(8) == 0 && !s.Soft { // many workgroups
		p.Tokens, p.In, p.Hidden, p.Out = 8000+rng.IntN(20000), 4+rng.IntN(40), 40+rng.IntN(120), min(most, 1+rng.IntN(40))
		d.Sample = 40
		call.Within(rng, mostElements/2, func() float64 { return float64(p.Tokens) * float64(p.Heads) * float64(p.Hidden+p.Out) }, &p.Heads, &p.Hidden)
		sizes = append(sizes[1:], &d.Sample)
	}
	call.Within(rng, s.Budget(rng), func() float64 {
		cost := passes * tokens() * float64(p.Heads) * float64(p.Hidden) * float64(p.In+p.Out)
		if d.Sample > 0 && backward {
			cost += passes * float64(p.Tokens) * float64(p.Heads) * 2 * float64(p.In+p.Out) / 4
		}
		return cost
	}, sizes...)
	if d.Sample > 0 {
		d.Sample = max(d.Sample, 2)
	}
	return p, true
}
