package attention

// QShape returns (batch, num_heads, seq_q, head_dim), and with Varlen
// (total_q, num_heads, head_dim).
func (p Problem) QShape() []int {
	if p.Varlen.On {
		return []int{p.Varlen.TotalQ, p.NumHeads, p.HeadDim}
	}
	return []int{p.Batch, p.NumHeads, p.SeqQ, p.HeadDim}
}

// KShape returns (batch, num_kv_heads, seq_kv, head_dim), and with Varlen
// (total_kv, num_kv_heads, head_dim).
func (p Problem) KShape() []int { return p.keyShape(p.HeadDim) }

// VShape returns KShape with the value_dim.
func (p Problem) VShape() []int { return p.keyShape(p.ValueHeadDim()) }

func (p Problem) keyShape(dim int) []int {
	if p.Varlen.On {
		return []int{p.Varlen.TotalKV, p.NumKVHeads, dim}
	}
	return []int{p.Batch, p.NumKVHeads, p.SeqKV, dim}
}

// OShape returns QShape with the value_dim.
func (p Problem) OShape() []int {
	shape := p.QShape()
	shape[len(shape)-1] = p.ValueHeadDim()
	return shape
}

// LSEShape returns (batch, num_heads, seq_q), and with Varlen (num_heads,
// total_q).
func (p Problem) LSEShape() []int {
	if p.Varlen.On {
		return []int{p.NumHeads, p.Varlen.TotalQ}
	}
	return []int{p.Batch, p.NumHeads, p.SeqQ}
}

// BiasShape returns (batch, num_heads, seq_q, seq_kv) with 1 for an axis that
// is shared.
func (p Problem) BiasShape() []int {
	shape := []int{1, 1, 1, p.SeqKV}
	if p.Bias.Batch {
		shape[0] = p.Batch
	}
	if p.Bias.Heads {
		shape[1] = p.NumHeads
	}
	if p.Bias.Rows {
		shape[2] = p.SeqQ
	}
	return shape
}

// SlopesShape returns the shape of ALiBi's slopes, (num_heads) or (batch,
// num_heads).
func (p Problem) SlopesShape() []int {
	if p.ALiBi == ALiBiPerBatchHead {
		return []int{p.Batch, p.NumHeads}
	}
	return []int{p.NumHeads}
}

// KeyMaskShape returns (batch, seq_kv).
func (p Problem) KeyMaskShape() []int { return []int{p.Batch, p.SeqKV} }

// SinksShape returns (num_heads).
func (p Problem) SinksShape() []int { return []int{p.NumHeads} }

// CuSeqlensShape returns (batch+1).
func (p Problem) CuSeqlensShape() []int { return []int{p.Batch + 1} }
