package attntest

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/enum"
)

// A Gradient says what values dO holds.
type Gradient uint8

// The kinds of dO.
const (
	// NormalDO is standard normal. Where V is Huge it is 2^-8 times that, so that dO*V
	// stays in the range of float16.
	NormalDO Gradient = iota

	// ZeroDO is all zeros: so are all gradients, exactly.
	ZeroDO

	// OneHotDO has a single 1, in the middle of the tensor: the gradients of the other
	// rows, heads and batches are 0.
	OneHotDO
)

// String returns the name as it stands in case names.
func (g Gradient) String() string {
	return enum.Names[Gradient]{"normal", "zero", "one-hot"}.Of(g)
}

// BackwardCases returns the cases of a set for the backward pass: those of the
// forward pass, all with an LSE and a normal dO, then what only this pass has:
// other dO, and a gradient of LSE, which every path adds to the same place, beside
// what it might disturb.
func BackwardCases(set Set) []*Case {
	t := table{slices.DeleteFunc(Cases(set), func(c *Case) bool { return c.NoLSE }), set.HeadDims()}
	t.gradients()
	return t.cases
}

func (t *table) gradients() {
	p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 50, SeqKV: 70, HeadDim: t.dims.Odd}
	for _, do := range []Gradient{ZeroDO, OneHotDO} {
		for _, causal := range []bool{false, true} {
			p.Causal = causal
			t.add("do", fmt.Sprintf("%v/%s", do, mask(causal)), Case{Problem: p, DO: do}, dtype.All()...)
		}
	}
	t.add("dlse", "causal", Case{Problem: p, DLSE: true}, dtype.All()...)
	t.add("dlse", "zero-do", Case{Problem: p, DLSE: true, DO: ZeroDO}, dtype.Float32)
	t.add("dlse", "layouts", Case{Problem: p, DLSE: true, Q: BSHD, K: Cache, V: Padded, O: Odd, LSE: Odd}, dtype.All()...)
	t.add("dlse", "odd", Case{Problem: p, DLSE: true, Q: OddOffset, K: Odd, V: OddOffset, O: Odd, LSE: OddOffset}, rotate(0)...)
	p.SeqQ, p.SeqKV = 70, 30
	t.add("dlse", "rows-that-see-nothing", Case{Problem: p, DLSE: true}, dtype.All()...)
	p.Sinks = true
	t.add("dlse", "sinks-rows-that-see-nothing", Case{Problem: p, DLSE: true}, dtype.All()...)
	p.SeqKV, p.Softcap, p.Bias, p.KeyMask = 70, 4, attention.Bias{On: true, Heads: true}, true
	t.add("dlse", "sinks-softcap-bias-key-mask", Case{Problem: p, DLSE: true, HidingBias: true}, rotate(1)...)
	c := Case{Problem: attention.Problem{NumHeads: 4, NumKVHeads: 2, HeadDim: t.dims.Feature, Causal: true, Sinks: true}, Lengths: packedLengths, Slack: 6, DLSE: true}
	t.add("dlse", "varlen-sinks", c, rotate(0)...)
	c.Problem.Dropout = attention.Dropout{P: 0.3, Seeded: true, Seed: 21}
	t.add("dlse", "varlen-sinks-dropout", c, rotate(1)...)
}

// upstream returns the gradients that the backward pass of the case starts from, in
// logical order.
func (c *Case) upstream() ref.Upstream[float64] {
	g, p := c.generator(2), c.Problem
	up := ref.Upstream[float64]{DO: g.normal(p.OShape())}
	switch {
	case c.DO == ZeroDO:
		clear(up.DO)
	case c.DO == OneHotDO:
		clear(up.DO)
		up.DO[len(up.DO)/2+p.ValueHeadDim()/3] = 1
	case c.Input == Huge:
		for i := range up.DO {
			up.DO[i] *= 0x1p-8
		}
	}
	round(up.DO, p.DType)
	g.resize(up.DO, c.Sizes.DO, c.Outliers, p.DType)
	if c.DLSE {
		up.DLSE = g.normal(p.LSEShape())
		round(up.DLSE, dtype.Float32)
		g.resize(up.DLSE, c.Sizes.DLSE, false, dtype.Float32)
	}
	return up
}
