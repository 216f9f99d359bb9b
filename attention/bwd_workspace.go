package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// BackwardWorkspace returns how many bytes Options.Workspace must have for
// Backward: 8 for each row of each head; with Sinks 4 for each 2048 of them; and with
// a Bias that rows share 4 for each key of each query head. Its errors are those of
// Backward about p and opt.
func BackwardWorkspace(caps *vk.Caps, p Problem, opt Options) (int64, error) {
	_, err := ChooseBackward(caps, p, opt)
	return workspaceBytes(p), err
}

// A bwdWorkspace holds what kernels of a call leave for others, float32.
type bwdWorkspace struct {
	rows      vk.Tensor // (batch, num_heads, seq_q, 2), or (num_heads, total_q, 2): of attention_bwd_delta
	sinkParts vk.Tensor // (batch, num_heads, sinkChunks): of attention_bwd_dsinks
	biasParts vk.Tensor // (batch, num_heads, seq_kv): of attention_bwd_dbias, for rows that share a bias
}

// workspaceShapes returns the shapes of rows, sinkParts and biasParts, nil for what p
// does not need.
func workspaceShapes(p *Problem) (shapes [3][]int) {
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
	return shapes
}

// rowsStrideB returns the stride of a batch in rows, in pairs.
func rowsStrideB(p *Problem) uint32 {
	if p.Varlen.On {
		return 0
	}
	return uint32(p.NumHeads * p.SeqQ)
}

// rowsStrideH returns the stride of a head in rows, in pairs.
func rowsStrideH(p *Problem) uint32 {
	if p.Varlen.On {
		return uint32(p.Varlen.TotalQ)
	}
	return uint32(p.SeqQ)
}

// workspaceBytes returns the size of all.
func workspaceBytes(p Problem) (bytes int64) {
	for _, shape := range workspaceShapes(&p) {
		bytes += 4 * elementsOf(shape)
	}
	return bytes
}

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

// newBwdWorkspace cuts the memory of a call.
func newBwdWorkspace(c *vk.Cmd, p Problem, opt *Options) (w bwdWorkspace, err error) {
	bytes := workspaceBytes(p)
	if limit := c.Device().Caps().MaxStorageBufferRange; uint64(bytes) > uint64(limit) {
		return w, unsupported("backward: a workspace of %d bytes is more than the device's largest storage buffer, %d", bytes, limit)
	}
	b := opt.Workspace
	if b == nil {
		b = c.Scratch("attention.backward", bytes)
	}
	at := 0
	for i, shape := range workspaceShapes(&p) {
		if shape == nil {
			continue
		}
		t := vk.View(b, dtype.Float32, shape...)
		t.Offset = at
		at += t.NumElements()
		*[]*vk.Tensor{&w.rows, &w.sinkParts, &w.biasParts}[i] = t
	}
	return w, c.Err()
}
