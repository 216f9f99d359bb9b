package vk

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
)

// Tensor is a view of a buffer as an array of numbers. Element (i, j, ...) is
// at Offset + i*Strides[0] + j*Strides[1] + ..., counted in elements from the
// start of the buffer. The zero Tensor stands for "none".
//
// A Tensor is a value: copies are views of the same buffer.
type Tensor struct {
	Buffer  *Buffer
	DType   dtype.DType
	Shape   []int
	Strides []int // elements
	Offset  int   // elements
}

// NewTensor returns a contiguous tensor on a buffer of its own, with undefined
// content. Every dimension must be positive.
func (d *Device) NewTensor(name string, t dtype.DType, shape ...int) (Tensor, error) {
	if !t.Valid() {
		return Tensor{}, fmt.Errorf("vk: tensor %q: %v is no storage format", name, t)
	}
	n := 1
	for _, dim := range shape {
		if dim <= 0 {
			return Tensor{}, fmt.Errorf("vk: tensor %q: shape %v has a dimension that is not positive", name, shape)
		}
		if n > math.MaxInt64/8/dim {
			return Tensor{}, fmt.Errorf("vk: tensor %q: shape %v is too large", name, shape)
		}
		n *= dim
	}
	b, err := d.NewBuffer(name, int64(n)*int64(t.Size()))
	if err != nil {
		return Tensor{}, err
	}
	return View(b, t, shape...), nil
}

// View returns a contiguous tensor at the start of b.
func View(b *Buffer, t dtype.DType, shape ...int) Tensor {
	strides := make([]int, len(shape))
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n
		n *= shape[i]
	}
	return Tensor{Buffer: b, DType: t, Shape: append([]int(nil), shape...), Strides: strides}
}

// Permute returns a view whose axis i is axis axes[i] of t. Axes must be a
// permutation of 0 to the rank of t less 1, else it panics.
func (t Tensor) Permute(axes ...int) Tensor {
	seen := make([]bool, len(t.Shape))
	v := t
	v.Shape, v.Strides = make([]int, len(axes)), make([]int, len(axes))
	for i, a := range axes {
		if len(axes) != len(t.Shape) || a < 0 || a >= len(seen) || seen[a] {
			panic("vk: Permute: axes are not a permutation")
		}
		seen[a] = true
		v.Shape[i], v.Strides[i] = t.Shape[a], t.Strides[a]
	}
	return v
}

// IsZero reports whether t stands for "none".
func (t Tensor) IsZero() bool { return t.Buffer == nil }

// NumElements returns the product of the shape.
func (t Tensor) NumElements() int {
	n := 1
	for _, dim := range t.Shape {
		n *= dim
	}
	return n
}

// Span returns the number of elements from Offset to just after the last
// element of t, gaps included.
func (t Tensor) Span() int {
	last := 0
	for i, dim := range t.Shape {
		last += (dim - 1) * t.Strides[i]
	}
	return last + 1
}

// Contiguous reports whether the elements follow one another in row-major
// order without gaps.
func (t Tensor) Contiguous() bool {
	n := 1
	for i := len(t.Shape) - 1; i >= 0; i-- {
		if t.Shape[i] != 1 && t.Strides[i] != n {
			return false
		}
		n *= t.Shape[i]
	}
	return true
}

// Aligned reports whether every row along the last axis starts at a multiple of n elements from the
// start of the buffer, so that kernels may load n elements at a time.
func (t Tensor) Aligned(n int) bool {
	if t.Offset%n != 0 {
		return false
	}
	for i := range len(t.Shape) - 1 {
		if t.Shape[i] > 1 && t.Strides[i]%n != 0 {
			return false
		}
	}
	return true
}

// Narrow returns t on a slice of its buffer with little else in it: the slice begins at a multiple
// of the device's alignment (Buffer.Slice) and ends at one of 16 bytes. Kernels that work on
// different tensors of one buffer may then run side by side. An invalid tensor is returned
// unchanged, and so is one that has its buffer to itself, and every tensor with Options.WholeBuffers.
func (t Tensor) Narrow() Tensor {
	if t.IsZero() || t.Validate() != nil || t.Buffer.d.options.WholeBuffers {
		return t
	}
	size := int64(t.DType.Size())
	start := int64(t.Offset) * size &^ (t.Buffer.d.sliceAlignment() - 1)
	end := min((int64(t.Offset+t.Span())*size+15)&^15, t.Buffer.bytes)
	if start == 0 && end == t.Buffer.bytes {
		return t
	}
	if b, err := t.Buffer.Slice(start, end-start); err == nil {
		t.Buffer, t.Offset = b, t.Offset-int(start/size)
	}
	return t
}

// Narrow replaces tensors by the results of their method Narrow. A kernel package calls it with all
// tensors of a call, so that kernels are bound to little more than the memory that they touch.
func Narrow(tensors ...*Tensor) {
	for _, t := range tensors {
		*t = t.Narrow()
	}
}

// Slice returns the view of the indices from first to end-1 of an axis. Like a slice of an
// array, it panics if those are not within the axis.
func (t Tensor) Slice(axis, first, end int) Tensor {
	if axis < 0 || axis >= len(t.Shape) || first < 0 || first > end || end > t.Shape[axis] {
		panic(fmt.Sprintf("vk: Slice(%d, %d, %d) of a tensor with shape %v", axis, first, end, t.Shape))
	}
	t.Shape = slices.Clone(t.Shape)
	t.Shape[axis] = end - first
	t.Offset += first * t.Strides[axis]
	return t
}

// Memory returns the buffer that owns the memory of t, and the bytes of it at which t begins and
// ends. If t.Buffer is a slice, the owner is the buffer that it is a slice of. The zero Tensor has
// none.
func (t Tensor) Memory() (b *Buffer, start, end int64) {
	if t.IsZero() {
		return nil, 0, 0
	}
	size := int64(t.DType.Size())
	start = t.Buffer.at + int64(t.Offset)*size
	return t.Buffer.whole(), start, start + int64(t.Span())*size
}

// Validate checks that t names elements inside an open buffer.
func (t Tensor) Validate() error {
	switch {
	case t.Buffer == nil:
		return fmt.Errorf("vk: tensor has no buffer")
	case !t.DType.Valid():
		return fmt.Errorf("vk: tensor on %q: %v is no storage format", t.Buffer.name, t.DType)
	case len(t.Shape) != len(t.Strides):
		return fmt.Errorf("vk: tensor on %q: shape %v and strides %v differ in length", t.Buffer.name, t.Shape, t.Strides)
	case t.Offset < 0:
		return fmt.Errorf("vk: tensor on %q: offset %d is negative", t.Buffer.name, t.Offset)
	}
	if err := t.Buffer.checkRange(0, 0); err != nil { // it may be closed
		return fmt.Errorf("vk: tensor: %w", err)
	}
	n := 1
	for _, dim := range t.Shape {
		if dim > 0 && n > math.MaxInt64/8/dim {
			return fmt.Errorf("vk: tensor on %q: shape %v has more elements than can be counted", t.Buffer.name, t.Shape)
		}
		n *= dim
	}
	size := int64(t.DType.Size())
	room := t.Buffer.bytes/size - int64(t.Offset) - 1 // elements after the first
	for i, dim := range t.Shape {
		if dim <= 0 || t.Strides[i] < 0 {
			return fmt.Errorf("vk: tensor on %q: shape %v must be positive, strides %v not negative", t.Buffer.name, t.Shape, t.Strides)
		}
		if steps := int64(dim - 1); steps > 0 && room >= 0 && int64(t.Strides[i]) > room/steps {
			room = -1
		} else {
			room -= steps * int64(t.Strides[i])
		}
		if room < 0 {
			break
		}
	}
	if room < 0 {
		return fmt.Errorf("vk: tensor with shape %v, strides %v, offset %d of %v is outside %v of %d bytes",
			t.Shape, t.Strides, t.Offset, t.DType, t.Buffer, t.Buffer.bytes)
	}
	return nil
}

// Close closes the buffer, and so every view of it. It does nothing to a slice.
func (t Tensor) Close() { t.Buffer.Close() }

// Upload stores data in a tensor of floating-point numbers, in row-major order
// of the shape, rounding to nearest even; UploadBools and UploadInts are for masks and lengths,
// UploadRaw for every format. It writes the elements of t alone, whoever
// writes between them at the same time, and waits as little as Buffer.Upload; gaps between elements
// or rows take it time. It is an error if two elements share memory.
func (t Tensor) Upload(ctx context.Context, data []float32) error {
	if err := t.checkFloats("upload", len(data)); err != nil {
		return err
	}
	size := t.DType.Size()
	return t.upload(ctx, func(dst []byte, at int) { storage.Encode(t.DType, dst, data[at:at+len(dst)/size]) })
}

// Download returns the elements of a tensor of floating-point numbers in
// row-major order of the shape. It waits, as Buffer.Download does.
func (t Tensor) Download(ctx context.Context, data []float32) error {
	if err := t.checkFloats("download", len(data)); err != nil {
		return err
	}
	size := t.DType.Size()
	return t.download(ctx, func(src []byte, at int) { storage.Decode(t.DType, data[at:at+len(src)/size], src) })
}

// UploadRaw is Upload of data in storage format, little endian.
func (t Tensor) UploadRaw(ctx context.Context, data []byte) error {
	size := t.DType.Size()
	if err := t.checkData("upload", len(data), t.NumElements()*size); err != nil {
		return err
	}
	return t.upload(ctx, func(dst []byte, at int) { copy(dst, data[at*size:]) })
}

// UploadBools is UploadRaw of a Bool tensor, a mask.
func (t Tensor) UploadBools(ctx context.Context, data []bool) error {
	if t.DType != dtype.Bool {
		return fmt.Errorf("vk: upload of %v as bools", t.DType)
	}
	raw := make([]byte, len(data))
	for i, x := range data {
		if x {
			raw[i] = 1
		}
	}
	return t.UploadRaw(ctx, raw)
}

// UploadInts is UploadRaw of an Int32 tensor, such as the lengths of sequences.
func (t Tensor) UploadInts(ctx context.Context, data []int32) error {
	if t.DType != dtype.Int32 {
		return fmt.Errorf("vk: upload of %v as int32", t.DType)
	}
	raw := make([]byte, 0, 4*len(data))
	for _, x := range data {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(x))
	}
	return t.UploadRaw(ctx, raw)
}

// Zero is Upload of zeros, of any format.
func (t Tensor) Zero(ctx context.Context) error {
	if err := t.Validate(); err != nil {
		return err
	}
	return t.upload(ctx, func(dst []byte, _ int) { clear(dst) })
}

// DownloadRaw is Download into storage format, little endian.
func (t Tensor) DownloadRaw(ctx context.Context, data []byte) error {
	size := t.DType.Size()
	if err := t.checkData("download", len(data), t.NumElements()*size); err != nil {
		return err
	}
	return t.download(ctx, func(src []byte, at int) { copy(data[at*size:], src) })
}

// DownloadInts is DownloadRaw of an Int32 tensor, such as the tokens of sequences.
func (t Tensor) DownloadInts(ctx context.Context, data []int32) error {
	if t.DType != dtype.Int32 {
		return fmt.Errorf("vk: download of %v as int32", t.DType)
	}
	raw := make([]byte, 4*len(data))
	if err := t.DownloadRaw(ctx, raw); err != nil {
		return err
	}
	for i := range data {
		data[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
	}
	return nil
}

func (t Tensor) checkData(what string, got, want int) error {
	if err := t.Validate(); err != nil {
		return err
	}
	if got != want {
		return fmt.Errorf("vk: %s of tensor with shape %v: the slice has length %d, want %d", what, t.Shape, got, want)
	}
	return nil
}

// checkFloats is checkData for one float32 for each element.
func (t Tensor) checkFloats(what string, got int) error {
	if err := t.checkData(what, got, t.NumElements()); err != nil {
		return err
	}
	if !t.DType.Float() && t.DType != dtype.E4M3 {
		return fmt.Errorf("vk: %s as float32: a tensor of %v has no floats; Tensor.Buffer copies its bytes", what, t.DType)
	}
	return nil
}
