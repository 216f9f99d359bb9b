package attention

import "github.com/flashvk/flashvk/vk"

// Packing (PackGQA in FlashAttention): with one query per head, the heads that share a key head
// become the rows of one matrix. K and V are then read once for all of them, and rows that would be
// empty are used:
//
//	(batch, num_heads, 1, head_dim)  ->  (batch, num_kv_heads, num_heads/num_kv_heads, head_dim)
//
// This is another view of the same memory, and the same product. Only masks and features depend on
// rows or heads. A causal mask can be dropped: aligned to the bottom right, it hides nothing from
// the last query. Problems with features are not packed.

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

// packHeads returns Q, O or LSE of p with the heads of a group as rows; the zero Tensor stays
// zero.
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
