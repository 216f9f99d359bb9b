package trial

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/call"
)

// drawStep draws a call of attention.Step. In most, all rows of a key head are one unit, as in the kernel that appends.
func drawStep(family, rng *rand.Rand, s call.Space) *call.Step {
	d := drawDecode(family, rng, s)
	if d == nil {
		return nil
	}
	p := &call.Step{Decode: *d}
	p.Shared = false
	p.Cache, p.Scales = attention.CacheSame, call.NoScales // one kernel appends to no other, and two have draws of their own
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
	if p.Config != nil && p.Config.Append && (&called{p}).Supports(call.TypicalCaps(s.Soft)) != nil {
		p.Config.Append = false
		if (&called{p}).Supports(call.TypicalCaps(s.Soft)) != nil {
			p.Config = nil
		}
	}
	return p
}

// newKeys sets how many keys are new, 1 at least, and what follows from that. Now and then a sequence has
// no room for them.
func newKeys(p *call.Step, rng *rand.Rand) {
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
