package attntest

import (
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/cover"
)

// KernelStandIns returns the cases that stand for all where kernels are compiled for long and a
// test is about their tiles: those in which every choice of a kernel occurs that occurs in any,
// and all of the same kernel. StandIns has every two choices together, on the tiles of the tuning
// table.
func KernelStandIns(cases []*Case) []*Case { return cover.Each(cases, (*Case).tile) }

// tile is kernel without what only the host asks for: a kernel has one constant for the alignment
// of all its tensors, and StandIns has each of them by itself.
func (c *Case) tile() []any {
	p := c.Problem
	return []any{
		p.DType.String(), p.HeadDim, p.ValueHeadDim(), p.Causal, p.SeqQ == 1, slices.ContainsFunc([]Layout{c.Q, c.K, c.V, c.O}, odd),
		c.NoLSE, strings.Join(p.Features(), " "), p.NumHeads > p.NumKVHeads,
	}
}

// odd reports whether rows lie at odd multiples of elements.
func odd(l Layout) bool { return l == Odd || l == OddOffset }

// StandIns returns those that stand for a suite: each length, mask, layout of a row's numbers
// and kind of values besides. TestMutations has mistakes that need these.
func StandIns(cases []*Case) []*Case {
	return cover.Pairs(cases, (*Case).kernel, func(c *Case) []any {
		p := c.Problem
		return []any{
			p.SeqQ, p.SeqKV, []any{p.Causal, p.CausalAlign, p.SeqQ > p.SeqKV, p.SeqQ < p.SeqKV}, p.Window, c.Slack > 0,
			p.Scale, p.Softcap, p.ALiBi, []any{p.Bias.String(), c.Features}, c.HidingBias, c.Mask,
			c.Input, c.Sizes, c.Outliers, c.DO, c.LSE, []any{c.DLSE, c.LSE},
		}
	})
}

// kernel returns what chooses a kernel, or changes how it is called.
func (c *Case) kernel() []any {
	p := c.Problem
	return []any{
		p.DType.String(), p.HeadDim, p.ValueHeadDim(), p.Causal, p.SeqQ == 1, odd(c.Q), odd(c.K), odd(c.V), odd(c.O),
		c.NoLSE, strings.Join(p.Features(), " "), p.NumHeads > p.NumKVHeads,
	}
}
