package trial

import (
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/attntest"
)

// Smaller implements Problem.
func (p *attentionProblem) Smaller() []Problem {
	var list []Problem
	step := func(change func(q *attentionProblem, a *attention.Problem)) {
		q := p.clone()
		change(q, &q.Case.Problem)
		q.tidy()
		if q.String() != p.String() && q.Case.Problem.Validate() == nil {
			list = append(list, q)
		}
	}
	p.smallerFeatures(step)
	p.smallerSizes(step)
	p.smallerData(step)
	return list
}

// An attentionStep takes a change of a copy.
type attentionStep func(change func(q *attentionProblem, a *attention.Problem))

// clone returns a copy that shares nothing.
func (p *attentionProblem) clone() *attentionProblem {
	q := *p
	q.Case.Lengths = slices.Clone(p.Case.Lengths)
	if p.Config != nil {
		c := *p.Config
		q.Config = &c
	}
	if p.BackwardConfig != nil {
		c := *p.BackwardConfig
		q.BackwardConfig = &c
	}
	if p.DecodeConfig != nil {
		c := *p.DecodeConfig
		q.DecodeConfig = &c
	}
	return &q
}

// tidy sets what follows from the rest.
func (p *attentionProblem) tidy() {
	c, a := &p.Case, &p.Case.Problem
	c.Pack()
	if !a.Varlen.On {
		c.Lengths, c.Slack = nil, 0
	}
	if !a.Causal && !a.Window.On && a.ALiBi == attention.ALiBiOff {
		a.CausalAlign = attention.BottomRight
	}
	if !a.Bias.On {
		c.HidingBias, c.Sizes.Bias = false, 0
	}
	if !a.KeyMask && !c.HidingBias {
		c.Mask = attntest.RandomMask
	}
	if c.Input == attntest.Huge {
		a.Scale = c.Input.ScaleFor(*a)
	}
	if p.Config != nil && p.Config.Splits > 1 {
		if tiles := (a.SeqKV + p.Config.BlockN - 1) / p.Config.BlockN; p.Config.Splits > tiles {
			p.Config.Splits = max(tiles, 0)
		}
	}
}

// smallerFeatures takes features away.
func (p *attentionProblem) smallerFeatures(step attentionStep) {
	off := []func(a *attention.Problem){
		func(a *attention.Problem) { a.Varlen = attention.Varlen{} },
		func(a *attention.Problem) { a.Dropout = attention.Dropout{} },
		func(a *attention.Problem) { a.Bias = attention.Bias{} },
		func(a *attention.Problem) { a.KeyMask = false },
		func(a *attention.Problem) { a.Sinks = false },
		func(a *attention.Problem) { a.Window = attention.Window{} },
		func(a *attention.Problem) { a.Softcap = 0 },
		func(a *attention.Problem) { a.ALiBi = attention.ALiBiOff },
		func(a *attention.Problem) { a.ValueDim = 0 },
	}
	step(func(_ *attentionProblem, a *attention.Problem) {
		for _, f := range off {
			f(a)
		}
	})
	for _, f := range off {
		step(func(_ *attentionProblem, a *attention.Problem) { f(a) })
	}
	step(func(_ *attentionProblem, a *attention.Problem) { a.Causal = false })
	step(func(_ *attentionProblem, a *attention.Problem) { a.CausalAlign = attention.BottomRight })
	step(func(_ *attentionProblem, a *attention.Problem) {
		a.Bias.Batch, a.Bias.Heads, a.Bias.Rows = false, false, false
	})
}

// smallerSizes makes lengths, heads and batches smaller.
func (p *attentionProblem) smallerSizes(step attentionStep) {
	step(func(q *attentionProblem, a *attention.Problem) {
		a.Batch, q.Case.Lengths = 1, q.Case.Lengths[:min(1, len(q.Case.Lengths))]
	})
	step(func(_ *attentionProblem, a *attention.Problem) { a.NumHeads, a.NumKVHeads = 1, 1 })
	step(func(q *attentionProblem, a *attention.Problem) {
		a.Batch, q.Case.Lengths = (a.Batch+1)/2, q.Case.Lengths[:(len(q.Case.Lengths)+1)/2]
	})
	step(func(q *attentionProblem, a *attention.Problem) { // the other half
		q.Case.Lengths = q.Case.Lengths[len(q.Case.Lengths)/2:]
	})
	step(func(_ *attentionProblem, a *attention.Problem) { a.NumHeads = a.NumKVHeads })
	step(func(_ *attentionProblem, a *attention.Problem) {
		group := a.NumHeads / a.NumKVHeads
		a.NumKVHeads = (a.NumKVHeads + 1) / 2
		a.NumHeads = a.NumKVHeads * group
	})
	// Halves first, then an eighth, then one.
	lengths := func(change func(n int) int) {
		step(func(q *attentionProblem, a *attention.Problem) {
			a.SeqQ = change(a.SeqQ)
			for b := range q.Case.Lengths {
				q.Case.Lengths[b][0] = change(q.Case.Lengths[b][0])
			}
		})
		step(func(q *attentionProblem, a *attention.Problem) {
			a.SeqKV = change(a.SeqKV)
			for b := range q.Case.Lengths {
				q.Case.Lengths[b][1] = change(q.Case.Lengths[b][1])
			}
		})
	}
	lengths(func(n int) int { return (n + 1) / 2 })
	lengths(func(n int) int { return n - n/8 })
	lengths(func(n int) int { return max(n-1, min(n, 1)) })
	step(func(_ *attentionProblem, a *attention.Problem) { a.HeadDim = (a.HeadDim/2 + 7) / 8 * 8 })
	step(func(_ *attentionProblem, a *attention.Problem) { a.HeadDim = max(8, a.HeadDim-8) })
	step(func(_ *attentionProblem, a *attention.Problem) { a.ValueDim = (a.ValueDim/2 + 7) / 8 * 8 })
	step(func(q *attentionProblem, _ *attention.Problem) { q.Case.Slack = 0 })
}

// smallerData makes layouts, values and the configuration plainer.
func (p *attentionProblem) smallerData(step attentionStep) {
	change := func(f func(c *attntest.Case)) {
		step(func(q *attentionProblem, _ *attention.Problem) { f(&q.Case) })
	}
	step(func(q *attentionProblem, _ *attention.Problem) {
		q.Config, q.BackwardConfig, q.DecodeConfig = nil, nil, nil
	})
	step(func(q *attentionProblem, _ *attention.Problem) {
		if q.Config != nil {
			q.Config.Splits, q.Config.Detour = 0, false
		}
		if q.BackwardConfig != nil {
			q.BackwardConfig.Splits = 0
		}
	})
	change(func(c *attntest.Case) { c.Q, c.K, c.V, c.O, c.LSE, c.Features = 0, 0, 0, 0, 0, 0 })
	for _, f := range []func(c *attntest.Case) *attntest.Layout{
		func(c *attntest.Case) *attntest.Layout { return &c.Q },
		func(c *attntest.Case) *attntest.Layout { return &c.K },
		func(c *attntest.Case) *attntest.Layout { return &c.V },
		func(c *attntest.Case) *attntest.Layout { return &c.O },
		func(c *attntest.Case) *attntest.Layout { return &c.LSE },
		func(c *attntest.Case) *attntest.Layout { return &c.Features },
	} {
		change(func(c *attntest.Case) { *f(c) = attntest.Packed })
	}
	step(func(q *attentionProblem, a *attention.Problem) {
		if q.Case.Input != attntest.Normal {
			q.Case.Input, a.Scale = attntest.Normal, 0
		}
	})
	step(func(q *attentionProblem, a *attention.Problem) { // scores stay as large
		if s := q.Case.Sizes; s.Q != 0 && s.K != 0 {
			a.Scale = a.EffectiveScale() * s.Q * s.K
			q.Case.Sizes = attntest.Sizes{}
		}
	})
	change(func(c *attntest.Case) { c.Sizes.V = 0 })
	change(func(c *attntest.Case) { c.Sizes.DO, c.Sizes.DLSE = 0, 0 })
	change(func(c *attntest.Case) { c.Sizes.Bias = 0 })
	step(func(_ *attentionProblem, a *attention.Problem) { a.Scale = 0 })
	change(func(c *attntest.Case) { c.Outliers = false })
	change(func(c *attntest.Case) { c.HidingBias = false })
	change(func(c *attntest.Case) { c.Mask = attntest.RandomMask })
	change(func(c *attntest.Case) { c.DO = attntest.NormalDO })
	change(func(c *attntest.Case) { c.DLSE = false })
	change(func(c *attntest.Case) { c.NoLSE = false })
	step(func(_ *attentionProblem, a *attention.Problem) {
		if a.Dropout.On() {
			a.Dropout.Seed, a.Dropout.Offset = 1, 0
		}
	})
}
