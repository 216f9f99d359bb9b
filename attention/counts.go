package attention

// Entries returns the number of pairs of a row and a key that it sees, in one head; with Varlen in
// a head of a sequence of the maximal lengths. Keys that only KeyMask or a -Inf in a bias hides
// count as seen.
func (p Problem) Entries() float64 { return p.Mask().Entries() }

// FLOPs returns the floating-point operations of the forward pass by the field's convention, one
// multiply and one add for each entry of Q*Kᵀ and of P*V:
//
//	2 * batch * heads * entries * (head_dim + value_dim)
//
// This is 4 * batch * heads * entries * head_dim if value_dim = head_dim. Masked entries do not
// count: a causal square has about half. With Varlen it is an upper bound; FLOPsOf is exact.
func (p Problem) FLOPs() float64 {
	return float64(p.Batch) * p.flopsOf(p.Mask())
}

// FLOPsOf is FLOPs for the sequences of a Varlen. CheckCuSeqlens must accept them.
func (p Problem) FLOPsOf(cuSeqlensQ, cuSeqlensKV []int32) float64 {
	sum := 0.0
	for b := range p.Batch {
		seqQ, seqKV := cuSeqlensQ[b+1]-cuSeqlensQ[b], cuSeqlensKV[b+1]-cuSeqlensKV[b]
		sum += p.flopsOf(p.MaskOf(int(seqQ), int(seqKV)))
	}
	return sum
}

// flopsOf returns the operations of a sequence.
func (p Problem) flopsOf(m Mask) float64 {
	return 2 * float64(p.NumHeads) * m.Entries() * float64(p.HeadDim+p.ValueHeadDim())
}

// BackwardFLOPs returns the operations of the backward pass by the same convention, five products
// for each entry: S and dP, then dV, dQ and dK. If value_dim = head_dim it is 2.5 times FLOPs.
func (p Problem) BackwardFLOPs() float64 {
	return p.FLOPs() / float64(p.HeadDim+p.ValueHeadDim()) * float64(3*p.HeadDim+2*p.ValueHeadDim())
}

// BackwardBytes returns the least traffic of the backward pass: Bytes, dO read, and the gradients of
// Q, K, V, bias and sinks written.
func (p Problem) BackwardBytes() float64 {
	bytes, parts := p.Bytes(), p.parts()
	for _, i := range []int{0, 1, 2, 3, 5, 7} {
		bytes += parts[i].bytes()
	}
	return bytes
}

// Bytes returns the least traffic of the forward pass: Q, K, V and the tensors of features read once, O
// and LSE written once. Keys that no row sees count too.
func (p Problem) Bytes() float64 {
	bytes := 0.0
	for _, x := range p.parts() {
		bytes += x.bytes()
	}
	return bytes
}

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
