package vk

import (
	"context"
	"fmt"
	"slices"
)

// blocks are where the bytes of a tensor are in a buffer: pieces of one size with gaps between them.
// Packed, they lie one behind the other, in the order of their places.
type blocks struct {
	at             int64   // where the first one begins
	bytes          int64   // of each
	shape, strides []int64 // how many, and the bytes from one to the next, outermost first
}

// region is a VkBufferCopy.
type region struct{ from, to, bytes int64 }

// maxRegions is the most of one copy, so that its command buffer stays small.
const maxRegions = 1 << 13

func (b *blocks) total() int64 {
	sum := b.bytes
	for _, n := range b.shape {
		sum *= n
	}
	return sum
}

// piece returns how many bytes a copy takes at most, if it takes no more than limit.
func (b *blocks) piece(limit int64) int64 {
	if b.bytes > limit/maxRegions {
		return limit
	}
	return maxRegions * b.bytes
}

// regions appends the copies of n packed bytes from at on, which are in memory from byte staged on,
// to their places in a buffer, where b begins at base.
func (b *blocks) regions(list []region, base, at, staged, n int64) []region {
	for n > 0 {
		place, within := base+b.at+distance(at/b.bytes, b.shape, b.strides), at%b.bytes
		bytes := min(b.bytes-within, n)
		list = append(list, region{staged, place + within, bytes})
		at, staged, n = at+bytes, staged+bytes, n-bytes
	}
	return list
}

// blocks returns where the elements of t are, and t as a view of the packed blocks. Blocks have gaps
// as long as they hold no more than waste times the memory of their elements.
func (t Tensor) blocks(waste int) (blocks, Tensor) {
	size := int64(t.DType.Size())
	packed := t
	packed.Strides, packed.Offset = slices.Clone(t.Strides), 0
	b := blocks{at: int64(t.Offset) * size, bytes: size}
	span, elements := 1, 1 // of a block, and then of all blocks so far
	for _, axis := range t.axes() {
		n, stride := t.Shape[axis], t.Strides[axis]
		if whole := span + (n-1)*stride; len(b.shape) == 0 && whole <= waste*elements*n {
			span, elements = whole, elements*n
			b.bytes = int64(span) * size
			continue
		}
		b.shape, b.strides = append(b.shape, int64(n)), append(b.strides, int64(stride)*size)
		packed.Strides[axis] = span
		span *= n
	}
	slices.Reverse(b.shape)
	slices.Reverse(b.strides)
	return b, packed
}

// axes returns the axes that have more than one index, the axis of the least stride first.
func (t Tensor) axes() []int {
	axes := make([]int, 0, len(t.Shape))
	for i, n := range t.Shape {
		if n > 1 {
			axes = append(axes, i)
		}
	}
	slices.SortFunc(axes, func(a, b int) int { return t.Strides[a] - t.Strides[b] })
	return axes
}

// upload stores the elements: put writes those from row-major index at on, as
// many as dst holds, in storage format.
func (t Tensor) upload(ctx context.Context, put func(dst []byte, at int)) error {
	if t.overlaps() {
		return fmt.Errorf("vk: upload of tensor with shape %v, strides %v: elements share memory", t.Shape, t.Strides)
	}
	size := int64(t.DType.Size())
	to, packed := t.blocks(1)
	fill := func(dst []byte, at int64) { put(dst, int(at/size)) }
	if !packed.Contiguous() {
		all := make([]byte, to.total())
		packed.parts(all, put)
		fill = func(dst []byte, at int64) { copy(dst, all[at:]) }
	}
	return t.Buffer.d.staging.upload(ctx, t.Buffer, to, fill)
}

// mostWaste is how many bytes a download reads for one that it wants, rather than have more regions.
const mostWaste = 8

// download reads the elements: take gets those from row-major index at on.
func (t Tensor) download(ctx context.Context, take func(src []byte, at int)) error {
	size := int64(t.DType.Size())
	from, packed := t.blocks(mostWaste)
	if packed.Contiguous() {
		return t.Buffer.d.staging.download(ctx, t.Buffer, from, func(src []byte, at int64) { take(src, int(at/size)) })
	}
	all := make([]byte, from.total())
	err := t.Buffer.d.staging.download(ctx, t.Buffer, from, func(src []byte, at int64) { copy(all[at:], src) })
	if err == nil {
		packed.parts(all, take)
	}
	return err
}

// parts calls f for all elements of t, in raw, with the row-major index of the first of each part.
func (t Tensor) parts(raw []byte, f func(part []byte, at int)) {
	size := t.DType.Size()
	t.rows(func(at, from, n, stride int) {
		if stride == 1 {
			f(raw[from*size:(from+n)*size], at)
			return
		}
		for i := range n {
			e := (from + i*stride) * size
			f(raw[e:e+size], at+i)
		}
	})
}

func (t Tensor) overlaps() bool {
	if t.Span() < t.NumElements() {
		return true
	}
	// Where each axis steps over all that the finer ones span, none do.
	span, apart := 1, true
	for _, i := range t.axes() {
		apart = apart && t.Strides[i] >= span
		span += (t.Shape[i] - 1) * t.Strides[i]
	}
	if apart {
		return false
	}
	taken, twice := make([]bool, span), false
	t.rows(func(_, from, n, stride int) {
		for i := range n {
			twice = twice || taken[from+i*stride]
			taken[from+i*stride] = true
		}
	})
	return twice
}

// rows calls f for every row along the last axis: at is the row-major index of
// its first element, from that element's distance from Offset, n and stride
// the number of elements and their distance.
func (t Tensor) rows(f func(at, from, n, stride int)) {
	last := len(t.Shape) - 1
	if last < 0 {
		f(0, 0, 1, 1)
		return
	}
	n := t.Shape[last]
	for row := range t.NumElements() / n {
		f(row*n, distance(row, t.Shape[:last], t.Strides), n, t.Strides[last])
	}
}

// distance returns where the element of a row-major index is.
func distance[N int | int64](index N, shape, strides []N) (sum N) {
	for axis := len(shape) - 1; axis >= 0; axis-- {
		sum += index % shape[axis] * strides[axis]
		index /= shape[axis]
	}
	return sum
}
