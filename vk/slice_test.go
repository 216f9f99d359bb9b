package vk_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func slice(t testing.TB, b *vk.Buffer, offset, bytes int64) *vk.Buffer {
	t.Helper()
	s := must(b.Slice(offset, bytes))
	return s
}

func sliceAlignment(d *vk.Device) int64 {
	return max(int64(d.Caps().MinStorageBufferOffsetAlignment), 16)
}

// numbered returns n float32, each its index.
func numbered(n int) []float32 {
	list := make([]float32, n)
	for i := range list {
		list[i] = float32(i)
	}
	return list
}

// TestSlice: kernels, transfers and tensors count from where a slice begins, and leave what
// is around it alone. Slices of slices are slices of the buffer.
func TestSlice(t *testing.T) {
	d := vktest.Open(t)
	align := int(sliceAlignment(d) / 4) // elements
	want := numbered(8 * align)
	whole := tensor(t, d, "whole", want...)
	outer := slice(t, whole.Buffer, int64(4*align), int64(4*4*align))
	inner := slice(t, outer, int64(4*2*align), 12)
	require.EqualValues(t, 12, inner.Bytes())
	require.Equal(t, "whole", inner.Name())
	view := vk.View(inner, dtype.Float32, 2)
	view.Offset = 1
	root, start, end := view.Memory()
	require.Same(t, whole.Buffer, root)
	require.Equal(t, []int64{int64(4 * (3*align + 1)), int64(4 * (3*align + 3))}, []int64{start, end})
	at := want[3*align:]

	c := newCmd(t, d)
	axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 2, XOffset: 3, YOffset: 1, A: 10}, whole, view)
	at[1] += 10 * 3
	at[2] += 10 * 4
	submit(t, c)
	wantTensor(t, whole, want...)
	wantTensor(t, view, at[1:3]...)

	c.Reset()
	c.Fill(inner, 8, 4, math.Float32bits(-1))
	c.Write(inner, 4, []byte{0, 0, 0, 0x40}) // 2
	c.Copy(inner, 0, slice(t, whole.Buffer, int64(4*align), 8), 4, 4)
	at[0], at[1], at[2] = want[align+1], 2, -1
	submit(t, c)
	wantTensor(t, whole, want...)

	require.NoError(t, view.Upload(background(), []float32{-7, -8}))
	at[1], at[2] = -7, -8
	wantTensor(t, whole, want...)
}

// TestSliceRefuses has what is wrong with ranges, and what is outside of slices.
func TestSliceRefuses(t *testing.T) {
	d := vktest.Open(t)
	align := sliceAlignment(d)
	b := newBuffer(t, d, "b", 4*align)
	for _, x := range []struct {
		offset, bytes int64
		want          string
	}{
		{0, 4*align + 1, `buffer "b" has`},
		{4 * align, 1, "is outside"},
		{-align, align, "is outside"},
		{align, -1, "is outside"},
		{math.MaxInt64 &^ 255, 256, "is outside"},
		{align, 0, "the size must be positive"},
		{align / 2, 4, fmt.Sprintf("offset %d is not a multiple of %d", align/2, align)},
		{align + 4, 4, "is not a multiple of"},
	} {
		_, err := b.Slice(x.offset, x.bytes)
		wantError(t, "Slice", err, "vk: slice", x.want)
	}
	_, err := (&vk.Buffer{}).Slice(0, 4)
	wantError(t, "Slice", err, "never made")

	s := slice(t, b, align, 12)
	name := fmt.Sprintf(`slice %d+12 of buffer "b"`, align)
	wantError(t, "Upload", s.Upload(background(), 8, make([]byte, 8)), name+" has 12 bytes, range 8+8 is outside")
	wantError(t, "Validate", vk.View(s, dtype.Float32, 4).Validate(), "is outside "+name)
	_, err = s.Slice(0, 16)
	wantError(t, "Slice", err, name+" has 12 bytes")
	c := newCmd(t, d)
	c.Copy(s, 8, b, 0, 8)
	wantError(t, "Copy", c.Err(), "vk: cmd", "Copy", "has 12 bytes")
	c.Reset()
	c.Copy(s, 0, b, align+4, 8)
	wantError(t, "Copy", c.Err(), "overlap")
}

// TestSliceClosed: a slice lives as long as its buffer.
func TestSliceClosed(t *testing.T) {
	d := vktest.Open(t)
	x, y := tensor(t, d, "x", numbered(8)...), tensor(t, d, "y", 0)
	s := slice(t, x.Buffer, 0, 16)
	view := vk.View(s, dtype.Float32, 4)
	c := newCmd(t, d)
	axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1, XOffset: 3, A: 1}, view, y)
	submit(t, c)
	view.Close() // does nothing
	submit(t, c)
	wantTensor(t, y, 6)
	x.Close()
	wantError(t, "Submit", c.Submit(background()), `buffer "x"`, "closed")
	wantError(t, "Validate", view.Validate(), "closed")
	_, err := s.Slice(0, 4)
	wantError(t, "Slice", err, "closed")
	require.Same(t, s, view.Narrow().Buffer)
	c.Reset()
	axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, view, y)
	wantError(t, "Dispatch", c.Err(), "tensor 0 has no open buffer")

	c.Reset()
	scratch := slice(t, c.Scratch("scratch", 64), 0, 16)
	c.Close()
	wantError(t, "Upload", scratch.Upload(background(), 0, make([]byte, 4)), "closed")
}

// TestNarrow: a narrow tensor has the elements of the tensor, and so little else that
// neighbors may be written side by side.
func TestNarrow(t *testing.T) {
	d := vktest.Open(t)
	n := int(sliceAlignment(d) / 4)
	want := numbered(4 * n)
	whole := tensor(t, d, "whole", want...)
	left, right := vk.View(whole.Buffer, dtype.Float32, n-2), vk.View(whole.Buffer, dtype.Float32, 2, 3)
	left.Offset, right.Offset, right.Strides[0] = 2, n+1, n
	narrow, other := left.Narrow(), right.Narrow()
	require.Equal(t, []int{2, 4 * n}, []int{narrow.Offset, int(narrow.Buffer.Bytes())})
	require.Equal(t, []int{1, 4 * (n + 4)}, []int{other.Offset, int(other.Buffer.Bytes())})
	wantTensor(t, narrow, want[2:n]...)
	wantTensor(t, other, append(want[n+1:n+4:n+4], want[2*n+1:2*n+4]...)...)
	root, from, to := other.Narrow().Memory()
	require.Same(t, whole.Buffer, root)
	require.Equal(t, []int64{int64(4 * (n + 1)), int64(4 * (2*n + 4))}, []int64{from, to})
	c := newCmd(t, d)
	for _, y := range []vk.Tensor{narrow, other} {
		axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1, YOffset: uint32(y.Offset)}, tensor(t, d, "x", 100), y)
	}
	submit(t, c)
	want[2] += 100
	want[n+1] += 100
	wantTensor(t, whole, want...)

	right.Offset = 3 * n // outside
	require.Equal(t, right, right.Narrow())
	require.Equal(t, vk.Tensor{}, vk.Tensor{}.Narrow())
}

// TestWholeBuffers: kernels see all of a buffer, and those that write parts of it run one after
// the other.
func TestWholeBuffers(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	n := int(sliceAlignment(d) / 4)
	x, y := tensor(t, d, "x", 1), tensor(t, d, "y", numbered(4*n)...)
	c := newCmd(t, d)
	for i := range 4 {
		part := y.Slice(0, i*n, (i+1)*n).Narrow()
		require.Same(t, y.Buffer, part.Buffer)
		require.Equal(t, i*n, part.Offset)
		axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1, YOffset: uint32(part.Offset)}, x, part)
	}
	require.Equal(t, 3, c.Barriers())
	submit(t, c)
}
