package trial

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
)

// drawAppend draws a call of attention.Append or attention.Advance.
func drawAppend(family, rng *rand.Rand, s call.Space) *call.Append {
	p := &call.Append{}
	var ok bool
	if p.DType, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	p.HeadDim = decodeDim(family)
	if family.IntN(4) == 0 {
		p.ValueDim = decodeDim(family)
	}
	p.Scales = drawCacheFormat(family, &p.DecodeProblem)
	switch family.IntN(4) {
	case 0, 1:
		p.RoPE.Dims = p.HeadDim
	case 2:
		p.RoPE.Dims = 2 * (1 + family.IntN(p.HeadDim/2))
	}
	p.RoPE.Interleaved = p.RoPE.Dims > 0 && chance(family, 2)
	p.KeysFirst, p.NoQ = chance(family, 2), chance(family, 4)
	switch family.IntN(3) {
	case 0:
		p.PageSize = attention.MinPageSize << family.IntN(6)
	case 1:
		p.CacheRows = 1 // a size
	}
	advance := chance(family, 6)
	p.Data = call.DrawData(family, rng)

	heads, group := 1+rng.IntN(4), one(rng, 1, 2, 4, 8)
	longest := call.Size(rng, 600)
	p.Batch, p.NewKeys = 1+rng.IntN(6), one(rng, 1, 1, 2, 3, 1+rng.IntN(40))
	cost := func() float64 {
		return 40 * float64(p.Batch*heads) * float64(p.HeadDim+p.ValueHeadDim()) * float64(longest+p.NewKeys*group)
	}
	call.Within(rng, s.Budget(rng), cost, &p.Batch, &p.NewKeys, &heads, &group, &longest)
	p.NumHeads, p.NumKVHeads, p.SeqQ = heads*group, heads, max(1, p.NewKeys-rng.IntN(2))
	p.SeqKV = longest + p.NewKeys
	if p.PageSize > 0 {
		p.SeqKV = (p.SeqKV + p.PageSize - 1) / p.PageSize * p.PageSize
		p.Pages = p.Batch*p.SeqKV/p.PageSize + rng.IntN(4)
	}
	if p.CacheRows > 0 {
		p.CacheRows = p.Batch + rng.IntN(4)
	}
	for range p.Batch {
		n := rng.IntN(p.SeqKV - p.NewKeys + 1)
		if rng.IntN(12) == 0 {
			n = p.SeqKV - p.NewKeys + 1 + rng.IntN(9) // one too many
		}
		p.Lens = append(p.Lens, n)
	}
	if advance {
		p.Advance = one(rng, 1, -1, 7, 1000)
	}
	return p
}
