package mlp

import (
	"slices"

	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
)

// Limits of the heads at a time.
const (
	headsBytes = 256 << 20 // of what a head has most of
	mostHeads  = 1<<16 - 1 // workgroups along an axis that every device has
)

// heads are the heads [first, first+n) that are computed at a time.
type heads struct{ first, n int }

// divide returns the heads at a time, about as many each time, of which each has some bytes.
func divide(p Problem, o Options, bytes int64) []heads {
	most := o.HeadsAtATime
	if most == 0 {
		most = int(max(headsBytes/max(bytes, 1), 1))
	}
	most = min(most, mostHeads)
	times := (p.heads() + most - 1) / most
	list := make([]heads, times)
	for i := range list {
		first, next := i*p.heads()/times, (i+1)*p.heads()/times
		list[i] = heads{first, next - first}
	}
	return list
}

// of returns the heads of a tensor whose axis that is, as (heads, rows, columns); of one
// perceptron all of it.
func (h heads) of(t vk.Tensor, axis int, p Problem) vk.Tensor {
	switch {
	case t.IsZero():
		return vk.Tensor{}
	case p.Heads == 0:
		t.Shape, t.Strides = slices.Insert(slices.Clone(t.Shape), 0, 1), slices.Insert(slices.Clone(t.Strides), 0, 0)
		return t
	case axis == 1:
		t = t.Permute(1, 0, 2)
	}
	t.Shape = slices.Clone(t.Shape)
	t.Shape[0] = h.n
	t.Offset += h.first * t.Strides[0]
	return t
}

// tensors returns the same of all tensors, but X, which all heads share.
func (h heads) tensors(t Tensors, p Problem) Tensors {
	return Tensors{
		X: t.X, W1: h.of(t.W1, 0, p), W2: h.of(t.W2, 0, p),
		Y: h.of(t.Y, 1, p), Pre: h.of(t.Pre, 1, p), Hidden: h.of(t.Hidden, 1, p),
	}
}

// gradients returns the same of all gradients, but DX.
func (h heads) gradients(g Gradients, p Problem) Gradients {
	return Gradients{DY: h.of(g.DY, 1, p), DX: g.DX, DW1: h.of(g.DW1, 0, p), DW2: h.of(g.DW2, 0, p)}
}

// repeat returns a matrix as that of every head.
func (h heads) repeat(x vk.Tensor) vk.Tensor {
	x.Shape, x.Strides = []int{h.n, x.Shape[0], x.Shape[1]}, []int{0, x.Strides[0], x.Strides[1]}
	return x
}

// unit returns the elements of 16 bytes.
func unit(p Problem) int { return 16 / p.DType.Size() }

// hiddenStride returns the hidden units of a head with their zeros: 16 bytes are a
// multiple of 8 elements of 16 bits, and of 4 of float32.
func hiddenStride(p Problem) int { return (p.Hidden + unit(p) - 1) / unit(p) * unit(p) }

// hiddenBytes returns the bytes of the hidden units of a head.
func hiddenBytes(p Problem) int64 {
	return int64(p.Tokens) * int64(hiddenStride(p)) * int64(p.DType.Size())
}

// rowStride returns the distance of rows of the hidden units of these heads in our memory.
func (h heads) rowStride(p Problem) int { return engine.RowStride(h.n * hiddenStride(p)) }

// bytes returns the memory of so many such rows.
func (h heads) bytes(rows int, p Problem) int64 {
	return int64(rows) * int64(h.rowStride(p)) * int64(p.DType.Size())
}

// rows returns so many such rows at a byte of memory, as a matrix of some columns.
func (h heads) rows(memory *vk.Buffer, at int64, rows, columns int, p Problem) vk.Tensor {
	t := vk.View(memory, p.DType, rows, columns)
	t.Strides = []int{h.rowStride(p), 1}
	t.Offset = int(at) / p.DType.Size()
	return t
}

// split returns such rows as (heads, rows, columns).
func (h heads) split(memory *vk.Buffer, at int64, rows, columns int, p Problem) vk.Tensor {
	t := h.rows(memory, at, rows, columns, p)
	t.Shape, t.Strides = []int{h.n, rows, columns}, []int{hiddenStride(p), t.Strides[0], 1}
	return t
}

// hiddenUnits returns those of the tokens as (heads, tokens, columns).
func (h heads) hiddenUnits(memory *vk.Buffer, at int64, columns int, p Problem) vk.Tensor {
	return h.split(memory, at, p.Tokens, columns, p)
}
