package trial

import (
	"math"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
)

// values draws what tensors hold.
func (d *attentionDraw) values() {
	c, p, rng := &d.Case, &d.Case.Problem, d.rng
	c.Seed = rng.Uint64() | 1
	if p.KeyMask || p.Bias.On {
		c.Mask = attntest.MaskKind(rng.IntN(int(attntest.NumMasks)))
		c.HidingBias = p.Bias.On && chance(rng, 3)
	}
	if d.Backward {
		c.DO = one(rng, attntest.NormalDO, attntest.NormalDO, attntest.NormalDO, attntest.NormalDO, attntest.NormalDO, attntest.ZeroDO, attntest.OneHotDO, attntest.OneHotDO)
	}
	if p.Bias.On && chance(rng, 2) {
		c.Sizes.Bias = logUniform(rng, -2, 1)
	}
	if chance(rng, 4) {
		c.Input = attntest.Input(rng.IntN(int(attntest.NumInputs)))
	}
	natural := 1 / math.Sqrt(float64(p.HeadDim))
	switch {
	case c.Input == attntest.BigLogits && p.DType == dtype.Float32 && d.Backward:
		// With logits of 1e4 the truncation of matrix units is an error of half a percent
		// of each weight. That is many times the error of a plain program, whose order of
		// adding suits these inputs.
		c.Input = attntest.Normal
	case c.Input == attntest.Huge && p.DType == dtype.Float16 && p.Dropout.On():
		c.Input = attntest.Normal // the formula overflows: V/(1-p)
	case c.Input == attntest.Huge:
		p.Scale = c.Input.ScaleFor(*p)
		return
	case c.Input != attntest.Normal:
		p.Scale = one(rng, 0, 0, -natural)
		return
	}
	c.Outliers = chance(rng, 6)
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
	c, p, rng := &d.Case, &d.Case.Problem, d.rng
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
	if c.Outliers {
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
	c, p, rng := &d.Case, &d.Case.Problem, d.rng
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
	or := func(x float64) float64 { // 0 stands for 1
		if x == 0 {
			return 1
		}
		return x
	}
	peak := 5.0 // of a standard normal tensor
	dot := 6 * math.Sqrt(float64(p.ValueHeadDim()))
	if c.Outliers {
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
	dX := 2 * dot * or(c.Sizes.V) * keep
	outer := max(1, 2*scale*or(c.Sizes.K)*peak, n*scale*or(c.Sizes.Q)*peak)
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
