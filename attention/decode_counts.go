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
	bytes := p.CacheBytesOf(seqLens) + float64(p.DType.Size())*(elements(p.QShape())+elements(p.OShape())) + 4*elements(p.LSEShape())
	perSequence := 4.0
	if p.CacheRows > 0 {
		perSequence += 4
	}
	if p.LeftPad {
		perSequence += 4
	}
	bytes += perSequence * float64(p.Batch)
	if p.Tree {
		bytes += 4 * elements(p.TreeMaskShape())
	}
	if p.ALiBi != ALiBiOff {
		bytes += 4 * elements(p.SlopesShape())
	}
	if p.Sinks {
		bytes += 4 * elements(p.SinksShape())
	}
	for _, n := range seqLens {
		if keys := p.seenKeys(int(n) + p.NewKeys); p.PageSize > 0 {
			bytes += 4 * float64(groups(keys, p.PageSize))
		}
	}
	if p.Bias.On {
		bytes += float64(p.Bias.DType.Size()) * elements(p.BiasShape())
	}
	return bytes
}
