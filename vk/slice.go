package vk

import "fmt"

// Slice returns the bytes of b from offset on as a buffer. Kernels see only these bytes, rounded up
// to 16 if b has more, and all offsets count from the start of the slice. Two kernels of a Cmd that
// write slices without a common byte need no barrier between them.
//
// Offset is a multiple of 16 and of Caps.MinStorageBufferOffsetAlignment, which is a power of two
// of at most 256. The range is not empty and lies within b. The error names the value that breaks a
// rule.
//
// A slice is a view: it needs no Close, and is closed when b is. A slice of a slice is a slice of
// its buffer.
func (b *Buffer) Slice(offset, bytes int64) (*Buffer, error) {
	if err := b.checkRange(offset, bytes); err != nil {
		return nil, fmt.Errorf("vk: slice: %w", err)
	}
	if bytes == 0 {
		return nil, fmt.Errorf("vk: slice of %v: the size must be positive", b)
	}
	if align := b.d.sliceAlignment(); offset%align != 0 {
		return nil, fmt.Errorf("vk: slice of %v: offset %d is not a multiple of %d", b, offset, align)
	}
	s := &Buffer{root: b.whole(), at: b.at + offset, block: block{bytes: bytes}}
	s.d, s.kind, s.name, s.owned = b.d, "slice", b.name, true
	return s, nil
}

// sliceAlignment returns what slices begin at multiples of: what descriptors demand, and
// whole 16 bytes, as kernels read and write them.
func (d *Device) sliceAlignment() int64 {
	return max(int64(d.caps.MinStorageBufferOffsetAlignment), 16)
}

// whole returns the buffer that has b's memory: b itself, if it is no slice.
func (b *Buffer) whole() *Buffer {
	if b.root != nil {
		return b.root
	}
	return b
}

// isClosed reports whether b, or what it is a slice of, is unusable.
func (b *Buffer) isClosed() bool { return b.whole().object.isClosed() }

// String returns kind and name, and the range of a slice, for errors.
func (b *Buffer) String() string {
	if b.root == nil {
		return b.object.String()
	}
	return fmt.Sprintf("slice %d+%d of %v", b.at, b.bytes, b.root)
}

// bound returns what a kernel sees of b.
func (b *Buffer) bound() bufferRange {
	if b.root == nil {
		return bufferRange{b.raw, 0, ^uint64(0)} // VK_WHOLE_SIZE
	}
	d := b.d
	return bufferRange{b.root.raw, uint64(b.at), uint64(min(d.wholeBytes(b.bytes), d.wholeBytes(b.root.bytes)-b.at))}
}
