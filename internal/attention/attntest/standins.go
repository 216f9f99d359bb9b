package attntest

import (
	"slices"
	"strings"

	"github.com/flashvk/flashvk/internal/cover"
)

// KernelStandIns returns cases that stand for all in tests of tiles whose kernels take long to
// compile. Every choice of a kernel that occurs in some case occurs in one of them, and all cases
// of the same kernel are among them. StandIns covers every two choices together, on the tiles of
// the tuning table.
func KernelStandIns(cases []*Case) []*Case { return cover.Each(cases, (*Case).tile) }

// tile is kernel without the choices that only the host makes. A kernel has one constant for the
// alignment of all its tensors; StandIns covers the alignment of each.
func (c *Case) tile() []any {
	p := c.Problem
	return []any{
		p.DType.String(), p.HeadDim, p.ValueHeadDim(), p.Causal, p.SeqQ == 1, slices.ContainsFunc([]Layout{c.Q, c.K, c.V, c.O}, odd),
		c.NoLSE, strings.Join(p.Features(), " "), p.NumHeads > p.NumKVHeads,
	}
}

// odd reports whether rows lie at odd multiples of elements.
func odd(l Layout) bool { return l == Odd || l == OddOffset }

// StandIns returns the cases that stand for a suite. Beside the choices of kernels they cover each
// length, mask, layout of LSE and kind of values, which some mistakes of TestMutations need.
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

// kernel returns the choices that decide on a kernel, or change how it is called.
func (c *Case) kernel() []any {
	p := c.Problem
	return []any{
		p.DType.String(), p.HeadDim, p.ValueHeadDim(), p.Causal, p.SeqQ == 1, odd(c.Q), odd(c.K), odd(c.V), odd(c.O),
		c.NoLSE, strings.Join(p.Features(), " "), p.NumHeads > p.NumKVHeads,
	}
}
