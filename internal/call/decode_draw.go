package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// drawDecode draws a call of attention.Decode.
func drawDecode(family, rng *rand.Rand, s Space) Call {
	p := &Decode{}
	name, ok := s.Impl(family, "auto", "coopmat", "coopmat", "scalar", "scalar")
	if !ok {
		return nil
	}
	p.Impl, _ = attention.ParseImpl(name)
	formats := dtype.All()
	if p.Impl == attention.CoopMat {
		formats = []dtype.DType{dtype.Float16, dtype.BFloat16}
	}
	if p.DType, ok = s.DType(family, formats...); !ok {
		return nil
	}
	p.HeadDim = decodeDim(family, s)
	if family.IntN(4) == 0 {
		p.ValueDim = decodeDim(family, s)
	}
	p.Scales = drawCacheFormat(family, &p.DecodeProblem)
	decodeFeatures(p, family)
	p.Data = DrawData(family, rng)
	if family.IntN(2) > 0 && p.Impl != attention.Auto {
		p.Config = drawDecodeConfig(family, p.Impl, p.DecodeProblem, s)
	}
	decodeSizes(p, rng, s)
	decodeScale(p, rng)
	drawGroups(rng, p.Config, s)
	return p
}

// drawGroups draws the number of workgroups of a configuration, if there is one.
func drawGroups(rng *rand.Rand, c *attention.DecodeConfig, s Space) {
	if c == nil {
		return
	}
	c.Groups = []int{1, 1 + rng.IntN(8), 1 + rng.IntN(64), 132, 264, 1 + rng.IntN(700)}[rng.IntN(6)]
	if s.Soft {
		c.Groups = 1 + c.Groups%40
	}
}

// decodeDim draws a head_dim: the usual ones more often than not. A software driver compiles a kernel
// of head_dim 176 for a minute and a half.
func decodeDim(family *rand.Rand, s Space) int {
	switch {
	case s.Soft && !s.Thorough:
		return 8 * (1 + family.IntN(9))
	case family.IntN(3) > 0:
		return one(family, 64, 64, 128, 128, 128, 96, 80, 256, 192, 40)
	}
	return 8 * (1 + family.IntN(attention.MaxHeadDim/8))
}

// decodeFeatures draws the features, which kernels are compiled for: none, one, or several.
func decodeFeatures(p *Decode, family *rand.Rand) {
	p.Causal = family.IntN(4) > 0
	p.KeysFirst, p.NoLSE = family.IntN(2) == 0, family.IntN(4) == 0
	switch family.IntN(5) {
	case 0, 1:
		p.PageSize = attention.MinPageSize << family.IntN(6)
		p.Shared = family.IntN(4) == 0
	case 2:
		p.CacheRows = 1 // a size
	}
	n := one(family, 0, 1, 1, 2, 2, 4)
	for _, x := range family.Perm(7)[:n] {
		switch x {
		case 0:
			p.Window = attention.Window{On: true, Left: 1, Right: attention.Unlimited} // Left is a size
		case 1:
			p.Softcap = one(family, 0.5, 3, 30)
		case 2:
			p.ALiBi = one(family, attention.ALiBiPerHead, attention.ALiBiPerBatchHead)
		case 3:
			p.Bias = attention.Bias{On: true, DType: one(family, p.DType, dtype.Float32), Batch: chance(family, 2), Heads: chance(family, 2), Rows: chance(family, 2)}
			p.Hiding = chance(family, 3)
		case 4:
			p.Sinks = true
		case 5:
			p.LeftPad = true
		case 6:
			p.Tree = true
		}
	}
	if p.Tree {
		p.Causal, p.Window, p.ALiBi = false, attention.Window{}, attention.ALiBiOff
	}
	if p.Window.On && p.Causal && chance(family, 2) {
		p.Window.Right = 0
	}
}

// drawDecodeConfig draws a configuration of a path, without the number of workgroups. It is nil if
// no draw is feasible for the format, head_dim and features of typical.
func drawDecodeConfig(family *rand.Rand, impl attention.Impl, typical attention.DecodeProblem, s Space) *attention.DecodeConfig {
	c := &attention.DecodeConfig{Impl: impl, Rows: 1 << family.IntN(5), Subgroups: one(family, 1, 2, 3, 4, 5, 8, 16, 32), Groups: 1}
	if impl == attention.CoopMat {
		c.Rows, c.Subgroups = one(family, 8, 8, 16, 32), one(family, 1, 2, 4, 8, 12, 16)
		if c.Detour = s.Soft || chance(family, 4); c.Detour { // a matrix of rows
			c.Rows = 16
			if s.Soft {
				c.Rows = 8
			}
		}
	}
	// Sizes are drawn later.
	typical.Batch, typical.NumHeads, typical.NumKVHeads, typical.SeqQ, typical.SeqKV = 1, 1, 1, 1, 256
	if typical.PageSize > 0 {
		typical.Pages = 256
	}
	caps := TypicalCaps(s.Soft)
	for ; c.Subgroups > 1; c.Subgroups /= 2 {
		if c.Feasible(caps, typical) == nil {
			break
		}
	}
	if c.Feasible(caps, typical) != nil {
		return nil
	}
	return c
}

// decodeSizes draws heads, queries and lengths, within a budget.
func decodeSizes(p *Decode, rng *rand.Rand, s Space) {
	group := one(rng, 1, 1, 2, 3, 4, 4, 8, 12, 16)
	heads, longest := 1+rng.IntN(4), Size(rng, 5000)
	p.Batch, p.SeqQ = 1+rng.IntN(6), one(rng, 1, 1, 1, 1, 2, 3, 4, 5, 8, 1+rng.IntN(attention.MaxDecodeQueries))
	if rng.IntN(8) == 0 {
		p.Batch = 8 + rng.IntN(60)
	}
	rows := p.Batch
	extra := rng.IntN(6)
	cost := func() float64 {
		if rows = p.Batch; p.CacheRows > 0 {
			rows += extra
		}
		keys := float64(longest)
		dims := float64(p.HeadDim + p.ValueHeadDim())
		return 4*dims*float64(p.Batch*heads*group*p.SeqQ)*keys + 20*dims*float64(rows*heads)*keys
	}
	Within(rng, s.Budget(rng), cost, &p.Batch, &p.SeqQ, &heads, &group, &longest)
	p.NumHeads, p.NumKVHeads = heads*group, heads
	p.NewKeys = min(one(rng, 0, p.SeqQ, rng.IntN(4)), longest)
	kind := rng.IntN(4)
	for b := range p.Batch {
		n := longest
		switch {
		case kind == 0 || b == 0:
		case kind == 1:
			n = rng.IntN(longest + 1)
		case kind == 2: // one is long, the others are short
			n = rng.IntN(min(longest, 20) + 1)
		default:
			n = min(Size(rng, longest), longest)
		}
		if rng.IntN(16) == 0 {
			n = 0
		}
		p.Lens = append(p.Lens, max(n-p.NewKeys, 0))
	}
	p.SeqKV = longest + one(rng, 0, 0, rng.IntN(40))
	if p.CacheRows > 0 {
		p.CacheRows = rows
	}
	if p.PageSize > 0 {
		p.SeqKV = (p.SeqKV + p.PageSize - 1) / p.PageSize * p.PageSize
		p.Pages = 1 + rng.IntN(10)
		if p.Shared {
			p.Pages += p.SeqKV / p.PageSize
		}
		for _, n := range p.Lens {
			if !p.Shared {
				p.Pages += (n + p.NewKeys + p.PageSize - 1) / p.PageSize
			}
		}
	}
	if p.Window.On {
		p.Window.Left = min(Size(rng, longest+10), math.MaxInt32)
	}
}

// decodeScale draws a scale that brings scores between 0.01 and 20; with outliers they are larger.
func decodeScale(p *Decode, rng *rand.Rand) {
	if p.DType == dtype.Float16 {
		p.Magnitude, p.Second = min(p.Magnitude, Most(p.DType)/p.Largest()), min(p.Second, Most(p.DType)/p.Largest())
	}
	if p.Magnitude != 0 || p.Second != 0 || chance(rng, 3) {
		p.Scale = TenTo(rng, -2, 1.3) / (OrOne(p.Magnitude) * OrOne(p.Second) * math.Sqrt(float64(p.HeadDim)))
	}
	if p.Kind == OutlierKind {
		p.Scale = p.EffectiveScale() / 1000
	}
	if chance(rng, 6) {
		p.Scale = -p.EffectiveScale()
	}
}

// drawCacheFormat draws the format of a cache, and changes the dimensions of the problem to fit it.
func drawCacheFormat(family *rand.Rand, p *attention.DecodeProblem) CacheScales {
	if p.Cache = one(family, attention.CacheSame, attention.CacheE4M3, attention.CacheQ8_0); p.DType == dtype.Float32 {
		p.Cache = attention.CacheSame
	}
	if p.Cache == attention.CacheQ8_0 {
		p.HeadDim, p.ValueDim = blocks(p.HeadDim), blocks(p.ValueDim)
	}
	if p.Cache == attention.CacheE4M3 {
		return one(family, NoScales, OneScale, AllScales, AllScales)
	}
	return NoScales
}

// blocks rounds up to blocks of q8_0.
func blocks(n int) int {
	return (n + attention.QuantBlock - 1) / attention.QuantBlock * attention.QuantBlock
}

// drawAppend draws a call of attention.Append or attention.Advance: what a step has, and a cache of any
// format.
func drawAppend(family, rng *rand.Rand, s Space) Call {
	s.Impls = nil
	step, ok := drawStep(family, rng, s).(*Step)
	if !ok {
		return nil
	}
	p := &Append{Step: *step, NoQ: chance(family, 4)}
	p.Impl, p.Config = attention.Auto, nil
	p.Scales = drawCacheFormat(family, &p.DecodeProblem)
	if chance(family, 6) {
		p.Advance = one(rng, 1, -1, 7, 1000)
	}
	return p
}

// drawStep draws a call of attention.Step. In most, all rows of a key head are one unit, as in the kernel that appends.
func drawStep(family, rng *rand.Rand, s Space) Call {
	d, ok := drawDecode(family, rng, s).(*Decode)
	if !ok {
		return nil
	}
	p := &Step{Decode: *d}
	p.Shared = false
	p.Cache, p.Scales = attention.CacheSame, NoScales // one kernel appends to no other, and two have draws of their own
	word := 16 / p.DType.Size()
	switch family.IntN(5) {
	case 0:
		p.RoPE.Dims = 2 * (1 + family.IntN(p.HeadDim/2))
	case 1, 2, 3:
		p.RoPE.Dims = p.HeadDim / (2 * word) * (2 * word)
	}
	p.RoPE.Interleaved = p.RoPE.Dims > 0 && chance(family, 2)
	group, most := p.NumHeads/p.NumKVHeads, 16
	if p.Config == nil && p.Impl != attention.Auto {
		p.Config = drawDecodeConfig(family, p.Impl, p.DecodeProblem, s)
		drawGroups(rng, p.Config, s)
	}
	if p.Config != nil {
		appends := family.IntN(4) > 0
		if p.Impl == attention.CoopMat {
			most = 32
		}
		if p.SeqQ = min(p.SeqQ, max(1, most/group)); appends {
			for p.Config.Rows < group*p.SeqQ {
				p.Config.Rows *= 2
			}
			p.Config.Append = true
		}
	}
	newKeys(p, rng)
	if p.Config != nil && p.Config.Append && Supports(p, TypicalCaps(s.Soft)) != nil {
		p.Config.Append = false
		if Supports(p, TypicalCaps(s.Soft)) != nil {
			p.Config = nil
		}
	}
	return p
}

// newKeys sets how many keys are new, 1 at least, and what follows from that. Now and then a sequence has
// no room for them.
func newKeys(p *Step, rng *rand.Rand) {
	if p.NewKeys == 0 {
		p.NewKeys = one(rng, 1, 1, 2, 1+rng.IntN(40))
		p.SeqKV += p.NewKeys
	}
	if p.PageSize > 0 {
		p.SeqKV = (p.SeqKV + p.PageSize - 1) / p.PageSize * p.PageSize
		p.Pages = p.Batch*p.SeqKV/p.PageSize + rng.IntN(4)
	}
	if rng.IntN(12) == 0 {
		p.Lens[rng.IntN(p.Batch)] = p.SeqKV - p.NewKeys + 1 + rng.IntN(9)
	}
}
