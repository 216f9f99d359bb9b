package call

import (
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

const (
	// wideBlocks blocks of at least 64 rows give each of 132 multiprocessors several
	// workgroups.
	wideBlocks, wideBlockRows = 520, 64
	// softBlocks is wideBlocks of a software driver.
	softBlocks = 40
	// mostOfTensor bounds the elements of a tensor, since the host reads each many times;
	// mostWide is the bound of a wide problem.
	mostOfTensor, mostWide = 2e6, 6e6
	// unfusedScores bounds the scores that the unfused path keeps in memory.
	unfusedScores = 1 << 23
)

// longest returns the longest sequence that is drawn.
func (d *attentionDraw) longest() int {
	switch {
	case d.space.Soft && d.decode:
		return 800
	case d.space.Soft:
		return 200
	case d.decode:
		return 8192
	}
	return 1100
}

// sizes draws lengths, heads and batches, and the sizes of features.
func (d *attentionDraw) sizes() {
	p, rng := &d.Problem, d.rng
	heads, group := one(rng, 1, 1, 2, 2, 3, 4), one(rng, 1, 1, 1, 2, 3, 4, 8)
	p.Batch = one(rng, 1, 1, 2, 2, 3, 4)
	p.SeqQ, p.SeqKV = Size(rng, min(d.longest(), 1100)), Size(rng, min(d.longest(), 1100))
	if chance(rng, 4) {
		p.SeqKV = p.SeqQ
	}
	if d.decode {
		p.SeqQ = 1 + rng.IntN(16)
		if chance(rng, 2) {
			p.SeqQ = 1
		}
		p.SeqKV = 1 + int(float64(d.longest())*rng.Float64()*rng.Float64())
		group *= 1 + rng.IntN(3)
	}
	wide := chance(rng, 8)
	if wide {
		d.wide(&heads, &group)
	} else if p.Varlen.On && chance(rng, 3) {
		p.Batch += rng.IntN(6)
	}
	over := func() float64 {
		p.NumKVHeads, p.NumHeads = heads, heads*group
		return d.over(wide)
	}
	if over() > 1 && !wide && chance(rng, 2) { // long rows of few heads
		p.Batch, heads, group = 1, 1, min(group, 4)
	}
	Within(rng, 1, over, &p.SeqQ, &p.SeqKV, &p.Batch, &heads, &group)
	if p.Varlen.On {
		d.lengths()
	}
	d.featureSizes()
	d.configSizes()
	if wide && 2*d.FLOPs() > d.space.Work {
		const least = 16
		d.Sample = max(int(d.space.Work/(4*float64(p.SeqKV)*float64(p.HeadDim+p.ValueHeadDim()))), least)
	}
}

// wide draws a problem of many blocks, of short or long sequences.
func (d *attentionDraw) wide(kvHeads, group *int) {
	p, rng := &d.Problem, d.rng
	blocks := wideBlocks
	if d.space.Soft {
		blocks = softBlocks
	}
	dim := max(p.HeadDim, p.ValueHeadDim())
	rows := min(int(mostWide)/dim, blocks*128) // of all heads
	if !d.decode {
		p.SeqQ = max(1, min(int(math.Exp2(math.Log2(float64(rows)+1)*rng.Float64())), 4096))
		if chance(rng, 2) {
			p.SeqQ = Size(rng, max(1, rows/blocks))
		}
	}
	each := (p.SeqQ + wideBlockRows - 1) / wideBlockRows
	heads := (blocks + each - 1) / each // of all batches
	if p.SeqQ*heads > rows {
		heads = max(1, rows/p.SeqQ)
	}
	*group = min(*group, heads)
	*kvHeads = max(1, min(heads / *group, one(rng, 1, 2, 4, 8, 16, 64)))
	each = *group * *kvHeads
	p.Batch = max(1, (heads+each-1)/each)
	most := max(1, int(mostWide)/(dim*p.Batch**kvHeads))
	p.SeqKV = min(Size(rng, max(d.longest(), 2048)), most)
}

// lengths draws the lengths of packed sequences. There are at most as many rows and keys as unpacked.
func (d *attentionDraw) lengths() {
	c, rng := d.Attention, d.rng
	p := &c.Problem
	length := func(most int) int {
		switch rng.IntN(8) {
		case 0:
			return 0
		case 1:
			return most
		case 2:
			return 1
		}
		return Size(rng, most)
	}
	c.Lengths = make([][2]int, p.Batch)
	for b := range c.Lengths {
		c.Lengths[b] = [2]int{length(p.SeqQ), length(p.SeqKV)}
		if chance(rng, 4) {
			c.Lengths[b][1] = min(c.Lengths[b][0], p.SeqKV)
		}
	}
	if b := rng.IntN(len(c.Lengths)); c.Lengths[b][0] == 0 || c.Lengths[b][1] == 0 {
		c.Lengths[b] = [2]int{p.SeqQ, p.SeqKV} // one has both
	}
	if chance(rng, 2) {
		c.Slack = rng.IntN(20)
	}
	c.Pack()
}

// over returns the largest ratio of a size to its bound; above 1 the problem is too large. Sequences that
// are packed are about half as long as the longest.
func (d *attentionDraw) over(wide bool) float64 {
	p := &d.Problem
	batch, heads, elements := float64(p.Batch), float64(p.NumHeads), mostOfTensor
	if wide {
		elements = mostWide
	}
	dim, scores := float64(max(p.HeadDim, p.ValueHeadDim())), batch*heads*float64(p.SeqQ)*float64(p.SeqKV)
	over := dim * batch * max(float64(p.SeqQ)*heads, float64(p.SeqKV)*float64(p.NumKVHeads)) / elements
	if p.Bias.On {
		over = max(over, float64(Product(p.BiasShape()))/elements)
	}
	if d.Impl == attention.Unfused { // with Varlen the path keeps scores for the longest lengths
		over = max(over, scores/unfusedScores)
	}
	if p.Varlen.On {
		scores /= 3
	}
	most := 2 * d.space.Work // the mean cost of many problems below a bound is less than half of the bound
	switch {
	case wide && d.space.Soft:
		most = 8 * d.space.Work
	case wide: // only a sample is compared, but the device computes all rows
		most = 2e11
	}
	return max(over, scores*d.scoreOperations()/most)
}

// scoreOperations returns the operations of the references for each score.
func (d *attentionDraw) scoreOperations() float64 {
	p := &d.Problem
	dim, value := float64(p.HeadDim), float64(p.ValueHeadDim())
	if d.Backward {
		return 2*(dim+value) + 4*(3*dim+2*value)
	}
	return 4 * (dim + value)
}

// featureSizes draws the numbers of features.
func (d *attentionDraw) featureSizes() {
	p, rng := &d.Problem, d.rng
	if p.Window.On {
		side := func(s *int) {
			if *s == attention.Unlimited {
				return
			}
			switch rng.IntN(5) {
			case 0:
				*s = 0
			case 1:
				*s = rng.IntN(10)
			case 2:
				*s = rng.IntN(p.SeqQ + p.SeqKV + 1)
			case 3:
				*s = 1 << 30
			default:
				*s = Size(rng, 300)
			}
		}
		side(&p.Window.Left)
		side(&p.Window.Right)
	}
	if p.Softcap != 0 {
		p.Softcap = TenTo(rng, -1, 2)
	}
	if p.Dropout.On() {
		p.Dropout = attention.Dropout{P: one(rng, 0.1, 0.2, 0.5, 0.9, 0.02+0.9*rng.Float64()), Seeded: true, Seed: rng.Uint64(), Offset: one(rng, 0, rng.Uint64(), 1<<32-uint64(rng.IntN(9)))}
	}
}

// configSizes draws the number of workgroups that divide the keys.
func (d *attentionDraw) configSizes() {
	p, rng := &d.Problem, d.rng
	if d.Config != nil && d.splits {
		tiles := (p.SeqKV + d.Config.BlockN - 1) / d.Config.BlockN
		if tiles >= 2 {
			d.Config.Splits = min(2+rng.IntN(7), tiles)
		}
	}
	for c := d.BackwardConfig; c != nil && c.Fused != (attention.BackwardTile{}) && p.SeqKV > 1 && c.Feasible(TypicalCaps(d.space.Soft), *p) != nil; {
		p.SeqKV /= 2 // one block has all keys
	}
	drawGroups(rng, d.DecodeConfig, d.space)
	if d.DecodeConfig != nil && Supports(d.Attention, TypicalCaps(d.space.Soft)) != nil {
		d.DecodeConfig = nil // a feature that decode has not
	}
}

// values draws what tensors hold.
func (d *attentionDraw) values() {
	c, p, rng := d.Attention, &d.Problem, d.rng
	c.Seed = rng.Uint64() | 1
	if p.KeyMask || p.Bias.On {
		c.Mask = MaskKind(rng.IntN(int(NumMasks)))
		c.HidingBias = p.Bias.On && chance(rng, 3)
	}
	if d.Backward {
		c.DO = one(rng, NormalDO, NormalDO, NormalDO, NormalDO, NormalDO, ZeroDO, OneHotDO, OneHotDO)
	}
	if p.Bias.On && chance(rng, 2) {
		c.Sizes.Bias = TenTo(rng, -2, 1)
	}
	if chance(rng, 4) {
		c.Kind = one(rng, AttentionKinds()...)
	}
	if p.Quant != dtype.NoQuant && chance(rng, 4) {
		c.Kind = WideKind
	}
	natural := 1 / math.Sqrt(float64(p.HeadDim))
	switch {
	case c.Kind == BigLogitsKind && p.DType == dtype.Float32 && d.Backward:
		// With logits of 1e4 the truncation of matrix units is an error of half a percent
		// of each weight. That is many times the error of a plain program, whose order of
		// adding suits these inputs.
		c.Kind = ""
	case c.Kind == HugeKind && p.DType == dtype.Float16 && p.Dropout.On():
		c.Kind = "" // the formula overflows: V/(1-p)
	case c.Kind == HugeKind:
		p.Scale = HugeScale(p)
		return
	case c.Kind != "":
		p.Scale = one(rng, 0, 0, -natural)
		return
	}
	if chance(rng, 6) {
		c.Kind = OutlierKind
	}
	if chance(rng, 2) {
		p.Scale = one(rng, 0, 0, 0, -natural, 1e-3, 0.3, -0.3)
		if d.Backward && p.DType == dtype.Float16 {
			d.upstream(1)
		}
		return
	}
	d.magnitudes()
}

// The largest and the smallest magnitudes of tensors, powers of 10.
const leastSize, mostSize = -4, 4

// magnitudes draws a magnitude for each tensor, and a scale that brings scores between 0.01 and 20,
// sometimes to 1000.
func (d *attentionDraw) magnitudes() {
	c, p, rng := d.Attention, &d.Problem, d.rng
	most := float64(mostSize)
	if p.DType == dtype.Float16 {
		most = math.Log10(5000) // the format holds six standard deviations
	}
	size := func() float64 { return TenTo(rng, leastSize, most) }
	c.Sizes.Q, c.Sizes.K, c.Sizes.V = size(), size(), size()
	if p.DType == dtype.Float16 {
		c.Sizes.V /= p.Dropout.KeepScale()
	}
	natural := c.Sizes.Q * c.Sizes.K // times head_dim^(1/2) and scale
	if c.Kind == OutlierKind {
		natural *= 10
	}
	target := TenTo(rng, -2, 1.3)
	if chance(rng, 8) {
		target = TenTo(rng, 1, 3)
	}
	p.Scale = target / (natural * math.Sqrt(float64(p.HeadDim)))
	if chance(rng, 4) {
		p.Scale = -p.Scale
	}
	if natural > 0.01 && natural < 20 && chance(rng, 2) {
		p.Scale = 0
	}
	d.upstream(size())
}

// upstream sets the size of dO. In float16 the size is smaller if products of dO would leave the
// range: dP = dO*V, dX = P*(dP - Delta + dLSE), and the gradients. Kernels round all of them to
// float16.
func (d *attentionDraw) upstream(size float64) {
	c, p, rng := d.Attention, &d.Problem, d.rng
	if !d.Backward {
		return
	}
	c.Sizes.DO = size
	if c.DLSE {
		c.Sizes.DLSE = TenTo(rng, -2, 1)
	}
	if p.DType != dtype.Float16 {
		return
	}
	const most = 20000.0
	peak := 5.0 // of a standard normal tensor
	dot := 6 * math.Sqrt(float64(p.ValueHeadDim()))
	if c.Kind == OutlierKind {
		peak *= 100
		dot += peak * peak
	}
	scale := math.Abs(p.EffectiveScale())
	keep := p.Dropout.KeepScale()
	rows := p.Batch * p.SeqQ
	if p.Varlen.On {
		rows = p.Varlen.TotalQ
	}
	n := 8 * math.Sqrt(float64(rows*p.NumHeads/p.NumKVHeads)) // a key that all rows see alone, signs at random
	if !p.Varlen.On {
		n /= math.Sqrt(float64(p.Batch))
	}
	// The largest dX for a dO of 1, and the largest products of it.
	dX := 2 * dot * OrOne(c.Sizes.V) * keep
	outer := max(1, 2*scale*OrOne(c.Sizes.K)*peak, n*scale*OrOne(c.Sizes.Q)*peak)
	if p.Bias.On && p.Bias.DType == dtype.Float16 {
		sum := float64(rows * p.NumHeads) // of an element that all share
		outer = max(outer, math.Sqrt(sum)*8)
	}
	limit := min(most/(dX*outer), most/(peak*keep*n))
	c.Sizes.DO = min(size, limit)
	if c.DLSE {
		c.Sizes.DLSE = min(c.Sizes.DLSE, most/(5*outer))
	}
}
