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
	// softBlocks is that of a software driver.
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
	p.NumKVHeads = one(rng, 1, 1, 2, 2, 3, 4)
	group := one(rng, 1, 1, 1, 2, 3, 4, 8)
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
		d.wide(&group)
	}
	p.NumHeads = p.NumKVHeads * group
	if p.Varlen.On {
		d.lengths()
	}
	for d.most(wide) > 1 && d.shrink() {
	}
	d.featureSizes()
	d.configSizes()
	if wide && 2*d.FLOPs() > d.space.Work {
		const least = 16
		d.Sample = max(int(d.space.Work/(4*float64(p.SeqKV)*float64(p.HeadDim+p.ValueHeadDim()))), least)
	}
}

// wide draws a problem of many blocks, of short or long sequences.
func (d *attentionDraw) wide(group *int) {
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
	p.NumKVHeads = max(1, min(heads / *group, one(rng, 1, 2, 4, 8, 16, 64)))
	p.Batch = max(1, (heads+*group*p.NumKVHeads-1)/(*group*p.NumKVHeads))
	most := max(1, int(mostWide)/(dim*p.Batch*p.NumKVHeads))
	p.SeqKV = min(Size(rng, max(d.longest(), 2048)), most)
}

// lengths draws the lengths of packed sequences. There are as many sequences as batches, and at
// most as many rows and keys as unpacked.
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
	c.Lengths = make([][2]int, max(p.Batch, 1))
	if chance(rng, 3) && p.Batch < 10 {
		c.Lengths = make([][2]int, p.Batch+rng.IntN(6))
	}
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

// rows returns the rows and the keys of all batches.
func (d *attentionDraw) rows() (q, kv int) {
	p := &d.Problem
	if p.Varlen.On {
		return p.Varlen.TotalQ, p.Varlen.TotalKV
	}
	return p.Batch * p.SeqQ, p.Batch * p.SeqKV
}

// most returns the largest ratio of a size to its bound; above 1 the problem is too large.
func (d *attentionDraw) most(wide bool) float64 {
	p := &d.Problem
	q, kv := d.rows()
	heads, elements := float64(p.NumHeads), float64(mostOfTensor)
	if wide {
		elements = mostWide
	}
	over := float64(q) * heads * float64(max(p.HeadDim, p.ValueHeadDim())) / elements
	over = max(over, float64(kv)*float64(p.NumKVHeads)*float64(max(p.HeadDim, p.ValueHeadDim()))/elements)
	scores := heads * float64(p.Batch) * float64(p.SeqQ) * float64(p.SeqKV) // of sequences of the maximal lengths
	if p.Varlen.On {
		scores = 0
		for _, n := range d.Lengths {
			scores += heads * float64(n[0]) * float64(n[1])
		}
	}
	if p.Bias.On {
		bias := 1.0
		for _, n := range p.BiasShape() {
			bias *= float64(n)
		}
		over = max(over, bias/elements)
	}
	if d.Impl == attention.Unfused {
		// With Varlen the path keeps scores for the longest lengths.
		over = max(over, heads*float64(p.Batch)*float64(p.SeqQ)*float64(p.SeqKV)/unfusedScores)
	}
	operations := scores * d.scoreOperations()
	if !wide {
		// The mean cost of many problems below a bound is less than half of the bound.
		return max(over, operations/(2*d.space.Work))
	}
	if d.space.Soft {
		return max(over, operations/(8*d.space.Work))
	}
	// Only a sample is compared, but the device computes all rows.
	return max(over, operations/2e11)
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

// shrink makes the problem smaller, and reports whether it could.
func (d *attentionDraw) shrink() bool {
	c, p := d.Attention, &d.Problem
	group := p.NumHeads / p.NumKVHeads
	switch {
	case p.NumKVHeads > 1 && (p.Batch == 1 || d.rng.IntN(2) == 0):
		p.NumKVHeads /= 2
		p.NumHeads = p.NumKVHeads * group
	case group > 4:
		p.NumHeads = p.NumKVHeads * (group / 2)
	case p.Batch > 1 && len(c.Lengths) != 1:
		if c.Lengths != nil {
			// It keeps the half that has the longest sequence with rows and keys, so
			// that some rows see keys.
			half := len(c.Lengths) / 2
			size := func(list [][2]int) (n int) {
				for _, x := range list {
					n = max(n, min(x[0], 1)*min(x[1], 1)*(x[0]+x[1]))
				}
				return n
			}
			if size(c.Lengths[:half]) > size(c.Lengths[half:]) {
				c.Lengths = c.Lengths[:half]
			} else {
				c.Lengths = c.Lengths[half:]
			}
			c.Pack()
			return true
		}
		p.Batch /= 2
	case group > 1:
		p.NumHeads = p.NumKVHeads * (group / 2)
	case p.SeqQ == 1 && p.SeqKV == 1:
		return false
	default:
		smaller := func(n int) int { return n - n*3/10 }
		if p.SeqQ >= p.SeqKV {
			p.SeqQ = max(1, smaller(p.SeqQ)-1)
		} else {
			p.SeqKV = max(1, smaller(p.SeqKV)-1)
		}
		for b := range c.Lengths {
			c.Lengths[b] = [2]int{min(c.Lengths[b][0], p.SeqQ), min(c.Lengths[b][1], p.SeqKV)}
		}
		c.Pack()
	}
	return true
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
		p.Softcap = logUniform(rng, -1, 2)
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
	if d.DecodeConfig != nil && supports(d.Attention, d.space) != nil {
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
		c.Sizes.Bias = logUniform(rng, -2, 1)
	}
	if chance(rng, 4) {
		c.Kind = one(rng, AttentionKinds()...)
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
	size := func() float64 { return logUniform(rng, leastSize, most) }
	c.Sizes.Q, c.Sizes.K, c.Sizes.V = size(), size(), size()
	if p.DType == dtype.Float16 {
		c.Sizes.V /= p.Dropout.KeepScale()
	}
	natural := c.Sizes.Q * c.Sizes.K // times head_dim^(1/2) and scale
	if c.Kind == OutlierKind {
		natural *= 10
	}
	target := logUniform(rng, -2, 1.3)
	if chance(rng, 8) {
		target = logUniform(rng, 1, 3)
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
		c.Sizes.DLSE = logUniform(rng, -2, 1)
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
	rows, _ := d.rows()
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
