package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// A bwdWorkspace holds the results that kernels of a call leave for other kernels, in float32, each
// in a slice of one buffer.
type bwdWorkspace struct {
	rows      vk.Tensor // (batch, num_heads, seq_q, 2), or (num_heads, total_q, 2): of attention_bwd_delta
	sinkParts vk.Tensor // (batch, num_heads, sinkChunks): of attention_bwd_dsinks
	biasParts vk.Tensor // (batch, num_heads, seq_kv): of attention_bwd_dbias or attention_bwd_dbias_stored, for rows that share a bias
	pages     vk.Tensor // (heads, pages, block, block), in which P and dX are 16 bits each: of lib/pages.glsl
	sums      vk.Tensor // (2, heads, seq_kv * head_dim), padded: dV and dK so far, of attention_bwd_products.comp
	biasSums  vk.Tensor // (batch or 1, num_heads or 1, seq_q, seq_kv): dBias so far, of attention_bwd_dbias_stored.comp
}

// workspaceShapes are the shapes of the tensors of a bwdWorkspace, nil for a tensor that is not
// needed.
type workspaceShapes [6][]int

// workspaceShapes returns the shapes that the kernels of c need for p.
func (c *BackwardConfig) workspaceShapes(caps *vk.Caps, p *Problem) (shapes workspaceShapes) {
	shapes[0] = []int{p.Batch, p.NumHeads, p.SeqQ, 2}
	if p.Varlen.On {
		shapes[0] = []int{p.NumHeads, p.Varlen.TotalQ, 2}
	}
	if p.Sinks {
		shapes[1] = []int{p.Batch, p.NumHeads, int(groups(p.SeqQ, sinkChunk))}
	}
	if p.Bias.On && !p.Bias.Rows {
		shapes[2] = []int{p.Batch, p.NumHeads, p.SeqKV}
	}
	shapes[3] = c.pagesShape(caps, p)
	shapes[4] = c.sumsShape(caps, p)
	shapes[5] = c.biasSumsShape(caps, p)
	return shapes
}

// rowsStrideB returns the stride of a batch in bwdWorkspace.rows, in pairs.
func rowsStrideB(p *Problem) uint32 {
	if p.Varlen.On {
		return 0
	}
	return uint32(p.NumHeads * p.SeqQ)
}

// rowsStrideH returns the stride of a head in bwdWorkspace.rows, in pairs.
func rowsStrideH(p *Problem) uint32 {
	if p.Varlen.On {
		return uint32(p.Varlen.TotalQ)
	}
	return uint32(p.SeqQ)
}

// workspaceBytes returns the size of all.
func workspaceBytes(shapes workspaceShapes) (bytes int64) {
	for _, shape := range shapes {
		if shape != nil {
			bytes = alignWorkspace(bytes) + 4*elementsOf(shape)
		}
	}
	return bytes
}

// alignWorkspace rounds up to the next start of a slice: on every device, slices may start at
// multiples of 256 bytes.
func alignWorkspace(bytes int64) int64 { return (bytes + 255) / 256 * 256 }

// elementsOf returns the product of a shape, 0 for none.
func elementsOf(shape []int) int64 {
	if shape == nil {
		return 0
	}
	n := int64(1)
	for _, s := range shape {
		n *= int64(s)
	}
	return n
}

// newBwdWorkspace cuts the workspace out of the caller's memory, or out of memory of c if there is
// none.
func newBwdWorkspace(c *vk.Cmd, shapes workspaceShapes, b *vk.Buffer) (w bwdWorkspace, err error) {
	bytes := workspaceBytes(shapes)
	if limit := c.Device().Caps().MaxStorageBufferRange; uint64(bytes) > uint64(limit) {
		return w, unsupported("backward: a workspace of %d bytes is more than the device's largest storage buffer, %d", bytes, limit)
	}
	if b == nil {
		b = c.Scratch("attention.backward", bytes)
	}
	at := int64(0)
	for i, t := range []*vk.Tensor{&w.rows, &w.sinkParts, &w.biasParts, &w.pages, &w.sums, &w.biasSums} {
		if shapes[i] == nil {
			continue
		}
		at = alignWorkspace(at)
		*t = vk.View(b, dtype.Float32, shapes[i]...)
		t.Offset = int(at / 4)
		*t = t.Narrow()
		at += 4 * elementsOf(shapes[i])
	}
	return w, c.Err()
}
