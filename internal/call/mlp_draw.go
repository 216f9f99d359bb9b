package call

import (
	"math/rand/v2"
	"reflect"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/fused"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

// drawMLP draws a two-layer perceptron.
func drawMLP(family, rng *rand.Rand, s Space) Call {
	p := &MLP{Direction: Direction{Backward: family.IntN(2) == 0}}
	keep, ok := mlp.Keeps()[family.IntN(3)], false
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
		columns := 8 * 4 * 16 // of the configuration in the table
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
func drawFusedConfig(family *rand.Rand, s Space) *fused.Config {
	caps, size, subgroups, tiles := TypicalCaps(s.Soft), 16, 8, 3
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
func drawPerceptron(family, rng *rand.Rand, s Space, heads, most int, backward bool, d *Data) (p mlp.Problem, ok bool) {
	if p.DType, ok = s.DType(family, dtype.All()...); !ok {
		return p, false
	}
	if family.IntN(2) == 0 {
		p.Grad = dtype.Some(dtype.All()[family.IntN(3)])
	}
	*d = DrawData(family, rng)
	if d.Magnitude != 0 {
		d.Magnitude = min(d.Magnitude, Roomy/d.Largest())
		d.Second = TenTo(rng, -2, 1.5) // of pre
		if p.DType == dtype.Float16 {
			d.Magnitude = max(d.Magnitude, 4*d.Second/Roomy*8) // W1 is in the format
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
		Within(rng, mostElements/2, func() float64 { return float64(p.Tokens) * float64(p.Heads) * float64(p.Hidden+p.Out) }, &p.Heads, &p.Hidden)
		sizes = append(sizes[1:], &d.Sample)
	}
	Within(rng, s.Budget(rng), func() float64 {
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

// drawGrouped draws perceptrons that share their input, and calls of the kernels of package skinny
// that compute their outputs and gradients.
func drawGrouped(family, rng *rand.Rand, s Space) Call {
	p := &MLP{Direction: Direction{Backward: family.IntN(2) == 0}}
	keep, ok := mlp.Keeps()[family.IntN(2)], false
	if p.Impl, ok = s.Impl(family, gemmImpls()...); !ok {
		return nil
	}
	p.Skinny = p.Impl != "scalar" && family.IntN(2) == 0
	outputs := 8
	if !p.Skinny && family.IntN(3) == 0 {
		outputs = 60
	}
	if p.Skinny {
		s = s.Halves()
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
	if family.IntN(3) > 0 && !p.kept() && p.Impl != "auto" {
		p.Config = drawConfig(family, s, p.Impl, !p.Backward, p, func(*engine.Config) {})
	}
	if !p.Backward || p.Keep == mlp.KeepNothing {
		p.TransA, p.TransB = family.IntN(3) == 0, family.IntN(3) == 0
		p.Alpha = []float64{0, 0, 0.5, 2, -1}[rng.IntN(5)]
	}
	return p
}

// drawConfig draws a configuration of products on a path that a call takes, or none. More adds to it.
func drawConfig(family *rand.Rand, s Space, impl string, packs bool, like Call, more func(c *engine.Config)) string {
	q := Copy(like)
	for _, name := range []string{"dtype", "out"} { // soft devices have no matrices of bfloat16
		if t := Field(q, name); s.Soft && t.IsValid() && t.Interface() == dtype.BFloat16 {
			t.Set(reflect.ValueOf(dtype.Float16))
		}
	}
	for range 100 {
		c := engine.Config{Impl: engine.Scalar, GroupM: 1 + family.IntN(22)}
		switch impl {
		case "scalar":
			drawScalarTiles(family, &c)
		case "gemv":
			drawGEMVTiles(family, &c)
		default:
			drawMatrixTiles(family, s, &c)
			c.AlignRows = family.IntN(2) == 0
			if c.PackB = packs && family.IntN(3) == 0; c.PackB {
				c.BlockK = int(TypicalCaps(s.Soft).CoopMatShapes[0].N) * 8 / (1 + family.IntN(2))
			}
		}
		more(&c)
		whole := c
		whole.Rows = 0
		Field(q, "config").SetString(whole.String())
		if Supports(q, TypicalCaps(s.Soft)) == nil {
			return c.String()
		}
	}
	return ""
}

// drawMixture draws a mixture whose components are heads.
func drawMixture(family, rng *rand.Rand, s Space) Call {
	p := &Mixture{Direction: Direction{Backward: family.IntN(2) == 0}, Outputs: family.IntN(4) == 0}
	var ok bool
	if p.Impl, ok = s.Impl(family, gemmImpls()...); !ok {
		return nil
	}
	p.Direct = !p.Backward && p.Impl != "scalar" && family.IntN(2) == 0
	if p.Direct {
		s = s.Halves()
	}
	x, ok := drawPerceptron(family, rng, s, 1+rng.IntN(12), 3, p.Backward, &p.Data)
	if !ok {
		return nil
	}
	p.Problem = mixture.Problem{Tokens: x.Tokens, Heads: x.Heads, In: x.In, Hidden: x.Hidden, DType: x.DType, Grad: x.Grad}
	if p.Magnitude != 0 {
		p.Second = TenTo(rng, -2, 0.3)
		p.Magnitude = max(p.Magnitude, 0.01) // w1 is in float16
	}
	outputs := one(family, 1, 2, 3, 3)
	p.LogP, p.Loss = outputs&1 > 0, outputs&2 > 0
	p.Groups, p.HeadsAtATime = rng.IntN(4), rng.IntN(4)
	if p.Backward && family.IntN(2) == 0 {
		p.DLoss = float64(float32(rng.NormFloat64() * 10))
	}
	if !p.Direct {
		p.Impl = softImpl(family, s, p.Impl, p.DType)
		return p
	}
	p.TransA, p.TransB = family.IntN(3) == 0, family.IntN(3) == 0
	if p.Impl != "auto" && family.IntN(3) > 0 {
		p.Config = drawConfig(family, s, p.Impl, false, p, func(*engine.Config) {})
	}
	return p
}

// mostElements bounds the outputs of many workgroups.
const mostElements = 8 << 20

// gemmImpls are the paths of products; auto is drawn twice as often.
func gemmImpls() []string { return []string{"auto", "auto", "coopmat", "coopmat", "coopmat", "scalar"} }

// softImpl returns the path to take. Software drivers take ten seconds to compile float32 on
// matrices, so most of these products take another path there.
func softImpl(family *rand.Rand, s Space, impl string, t dtype.DType) string {
	if s.Soft && s.Impls == nil && impl == "coopmat" && t == dtype.Float32 && family.IntN(6) > 0 {
		return "scalar"
	}
	return impl
}

// drawMatrixTiles draws tiles of path coopmat. They are small on software drivers, which take
// seconds to compile large ones.
func drawMatrixTiles(family *rand.Rand, s Space, c *engine.Config) {
	c.Impl = engine.CoopMat
	grids := [][2]int{{1, 1}, {1, 2}, {2, 1}, {1, 4}, {2, 2}, {4, 1}, {2, 4}, {4, 2}, {3, 1}, {2, 3}}
	const tiles, size = 4, 16
	if s.Soft { // few choices, so that families share pipelines
		grid := grids[1+family.IntN(3)]
		c.SubgroupsM, c.SubgroupsN, c.TilesM, c.TilesN, c.BlockK, c.GroupM = grid[0], grid[1], 1, 1+family.IntN(2), 8*(1+family.IntN(2)), 1+family.IntN(3)
		return
	}
	grid := grids[family.IntN(len(grids))]
	c.SubgroupsM, c.SubgroupsN = grid[0], grid[1]
	c.TilesM, c.TilesN = 1+family.IntN(tiles), 1+family.IntN(tiles)
	c.BlockK = size * []int{1, 2, 2, 3, 4, 6}[family.IntN(6)]
	c.LoadAhead = []int{0, 0, 1, 2}[family.IntN(4)]
	c.GroupM = 1 + family.IntN(22)
}
