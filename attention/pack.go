package attention

import "github.com/flashvk/flashvk/vk"

// Packing: with one query for each head, as when a model decodes token after
// token, the heads that share a key head are the rows of one matrix. K and V
// are then read once for all of them, and rows that would be empty are used:
//
//	(batch, num_heads, 1, head_dim)  ->  (batch, num_kv_heads, num_heads/num_kv_heads, head_dim)
//
// It is another view of the same memory and the same product, but for what
// speaks of rows or heads. That is a causal mask, which can go: aligned to the
// bottom right it hides nothing from the last query. And it is most features.

// packs reports whether p has heads to pack.
func packs(p *Problem) bool {
	all := !p.Causal || p.CausalAlign == BottomRight
	return p.SeqQ == 1 && p.NumHeads > p.NumKVHeads && all && p.Plain()
}

// packProblem returns the problem with the heads of a group as rows.
func packProblem(p Problem) Problem {
	p.SeqQ, p.NumHeads, p.Causal = p.NumHeads/p.NumKVHeads, p.NumKVHeads, false
	return p
}

// packHeads returns Q, O or LSE of p with the heads of a group as rows, the
// zero Tensor for the zero Tensor.
func packHeads(t vk.Tensor, p *Problem) vk.Tensor {
	if t.IsZero() {
		return t
	}
	rows := p.NumHeads / p.NumKVHeads
	head := t.Strides[1]
	shape, strides := []int{p.Batch, p.NumKVHeads, rows}, []int{t.Strides[0], rows * head, head}
	t.Shape, t.Strides = append(shape, t.Shape[3:]...), append(strides, t.Strides[3:]...)
	return t
}
