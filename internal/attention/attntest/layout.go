package attntest

import "github.com/flashvk/flashvk/internal/enum"

// A Layout says how a tensor is placed in its backing slice. All have a contiguous last axis, and
// garbage as a guard on both sides, except that Packed begins at 0.
type Layout uint8

// The layouts of a (batch, heads, seq, dim) tensor. "·" is garbage.
const (
	// Packed is (batch, heads, seq, dim) from offset 0 on, contiguous: the only layout
	// that needs no strides.
	Packed Layout = iota

	// BSHD is (batch, seq, heads, dim): what a projection writes.
	//
	//	h0 h1 h2 h0 h1 h2 h0 h1 h2
	BSHD

	// SBHD is (seq, batch, heads, dim).
	SBHD

	// FusedQKV is (batch, seq, 3, heads, dim), as one projection writes Q, K and V. The tensor is
	// the middle third.
	//
	//	· · · h0 h1 h2 · · · · · · h0 h1 h2 · · ·
	FusedQKV

	// Cache is Packed with room for more rows after each head's last, as a
	// key-value cache leaves it.
	//
	//	h0 h0 h0 · · h1 h1 h1 · ·
	Cache

	// Padded has 8 elements between rows: strides stay multiples of 8, so that
	// 16-byte loads remain possible.
	Padded

	// Odd has 3 elements between rows and an odd offset: rows are aligned to more than one
	// element only by chance.
	Odd

	// OddOffset is contiguous from an odd offset on.
	OddOffset

	// NumLayouts is how many there are.
	NumLayouts
)

// String returns the layout's name as it stands in case names.
func (l Layout) String() string {
	return enum.Names[Layout]{"packed", "bshd", "sbhd", "fused-qkv", "cache", "padded", "odd", "odd-offset"}.Of(l)
}

const (
	// guardElements elements precede the tensor; a multiple of 8 keeps it aligned.
	guardElements = 64
	// guardRows rows follow it, so that a tile that runs over the end
	// meets garbage before the end of the buffer.
	guardRows = 16
	// cacheRows is the unused capacity of Cache.
	cacheRows = 24
)

// place returns the offset and strides of a tensor of that shape, (batch,
// heads, seq, dim), and the length of its backing slice.
func (l Layout) place(shape []int) (offset int, strides []int, length int) {
	b, h, s, d := shape[0], shape[1], shape[2], shape[3]
	offset = guardElements
	row := d // distance of rows where they are neighbours
	switch l {
	case Padded:
		row = d + 8
	case Odd:
		row, offset = d+3, guardElements+5
	case OddOffset:
		offset = guardElements + 7
	case Packed:
		offset = 0
	}
	switch l {
	case BSHD:
		strides = []int{s * h * d, d, h * d, 1}
	case SBHD:
		strides = []int{h * d, d, b * h * d, 1}
	case FusedQKV:
		strides = []int{s * 3 * h * d, d, 3 * h * d, 1}
		offset += h * d
	case Cache:
		strides = []int{h * (s + cacheRows) * d, (s + cacheRows) * d, d, 1}
	default:
		strides = []int{h * s * row, s * row, row, 1}
	}
	last := offset + d
	for a, n := range shape[:3] {
		last += (n - 1) * strides[a]
	}
	return offset, strides, last + guardElements + guardRows*row
}

// placeAny is place for a tensor of fewer axes. Packed Q, K, V and O, (total, heads, dim), are
// placed as one batch. All others are placed as an LSE with the same last axis, whose missing first
// axes are 1.
func (l Layout) placeAny(shape []int, packed bool) (offset int, strides []int, length int) {
	switch {
	case packed:
		offset, strides, length = l.place([]int{1, shape[1], shape[0], shape[2]})
		return offset, []int{strides[2], strides[1], 1}, length
	case len(shape) == 4:
		return l.place(shape)
	}
	ones := []int{1, 1}[:3-len(shape)]
	offset, strides, length = l.placeLSE(append(ones, shape...))
	return offset, strides[len(ones):], length
}

// placeLSE is place for LSE, (batch, heads, seq). Layouts with garbage between rows have it between
// the heads of LSE.
func (l Layout) placeLSE(shape []int) (offset int, strides []int, length int) {
	h, s := shape[1], shape[2]
	offset = guardElements
	row := s
	switch l {
	case Packed:
		offset = 0
	case Padded, Cache, FusedQKV:
		row = s + 8
	case Odd:
		row, offset = s+3, guardElements+5
	case OddOffset:
		offset = guardElements + 7
	}
	return offset, []int{h * row, row, 1}, offset + shape[0]*h*row + guardElements
}
