package attention

// FLOPsOf returns the floating-point operations of Decode for the given SeqLens, by the convention
// of Problem.FLOPs. Keys that LeftPad and Tree hide count too.
func (p DecodeProblem) FLOPsOf(seqLens []int32) float64 {
	sum := 0.0
	for _, n := range seqLens {
		sum += p.flopsOf(p.MaskOf(p.SeqQ, int(n)+p.NewKeys))
	}
	return sum
}

// CacheBytesOf returns the bytes of the keys and values that queries see, with the scales of
// blocks, for sequences of the given SeqLens: the part of the cache that Decode has to read.
func (p DecodeProblem) CacheBytesOf(seqLens []int32) float64 {
	keys := 0
	for _, n := range seqLens {
		keys += p.seenKeys(int(n) + p.NewKeys)
	}
	return p.cacheBytes(float64(keys) * float64(p.NumKVHeads) * float64(p.HeadDim+p.ValueHeadDim()))
}

// seenKeys returns how many of n keys some query of a sequence sees.
func (p *DecodeProblem) seenKeys(n int) int {
	m := p.MaskOf(p.SeqQ, n)
	from, _ := m.Keys(0)
	_, to := m.Keys(p.SeqQ - 1)
	return max(to-from, 0)
}

// BytesOf returns the least traffic of Decode: CacheBytesOf, Q and the tensors of features read
// once, O and LSE written once. Of the block table only entries of seen keys count.
func (p DecodeProblem) BytesOf(seqLens []int32) float64 {
	bytes, parts := p.CacheBytesOf(seqLens), p.parts()
	for _, i := range []int{0, 3, 4, 5, 6, 7} { // Q, O, LSE, bias, slopes and sinks
		bytes += parts[i].bytes()
	}
	words := p.Batch // SeqLens
	if p.CacheRows > 0 {
		words += p.Batch
	}
	if p.LeftPad {
		words += p.Batch
	}
	if p.Tree {
		words += 2 * p.Batch * p.SeqQ
	}
	for _, n := range seqLens {
		if p.PageSize > 0 {
			words += int(groups(p.seenKeys(int(n)+p.NewKeys), p.PageSize))
		}
	}
	return bytes + 4*float64(words)
}
