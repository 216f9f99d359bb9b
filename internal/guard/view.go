package guard

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/vk"
)

// A View is a strided view of a memory. Element (i0, i1, …) is Data[Offset + i0*Strides[0] +
// i1*Strides[1] + …]. An implementation must neither use nor change the rest of Data. Views may
// share Data.
type View struct {
	Name  string      // in messages
	DType dtype.DType // what Data's values can be stored as

	// Data is float64, so that float64 implementations are checked to their own precision. Values
	// of inputs are exact in DType.
	Data []float64

	Offset  int   // elements
	Shape   []int // at least one axis
	Strides []int // elements; the last is 1
}

// NumElements returns the product of the shape.
func (v *View) NumElements() int { return vk.Tensor{Shape: v.Shape}.NumElements() }

// rows calls f with the position in Data of each run along the last axis, in
// logical order.
func (v *View) rows(f func(at int)) {
	if v.NumElements() == 0 {
		return
	}
	index := make([]int, len(v.Shape)-1)
	for {
		at := v.Offset
		for a, i := range index {
			at += i * v.Strides[a]
		}
		f(at)
		a := len(index) - 1
		for ; a >= 0; a-- {
			index[a]++
			if index[a] < v.Shape[a] {
				break
			}
			index[a] = 0
		}
		if a < 0 {
			return
		}
	}
}

// Gather returns the elements in logical order.
func (v *View) Gather() []float64 {
	out := make([]float64, 0, v.NumElements())
	n := v.Shape[len(v.Shape)-1]
	v.rows(func(at int) { out = append(out, v.Data[at:at+n]...) })
	return out
}

// Scatter sets the elements from logical order. len(src) must be NumElements.
func (v *View) Scatter(src []float64) {
	n := v.Shape[len(v.Shape)-1]
	v.rows(func(at int) {
		copy(v.Data[at:at+n], src[:n])
		src = src[n:]
	})
}

// Encode returns Data in the storage format, little-endian, as in a device's buffer. It keeps Inf,
// values of DType and the NaN of Surroundings.
func (v *View) Encode() []byte {
	b := make([]byte, len(v.Data)*v.DType.Size())
	switch v.DType { // float32 has not all integers
	case dtype.Int32:
		for i, x := range v.Data {
			binary.LittleEndian.PutUint32(b[4*i:], uint32(int32(x)))
		}
		return b
	case dtype.Bool:
		for i, x := range v.Data {
			b[i] = byte(x)
		}
		return b
	}
	var part [256]float32
	for from := 0; from < len(v.Data); from += len(part) {
		n := min(len(part), len(v.Data)-from)
		for i, x := range v.Data[from : from+n] {
			part[i] = float32(x)
		}
		storage.Encode(v.DType, b[from*v.DType.Size():], part[:n])
	}
	return b
}

// decodeChanged sets Data from what Encode returned before a call, and what it would return after. It
// skips bytes that have not changed: a NaN of an input keeps its bits.
func (v *View) decodeChanged(before, after []byte) {
	const block = 64 // elements: most memory is as it was
	size := v.DType.Size()
	for from := 0; from < len(v.Data); from += block {
		to := min(from+block, len(v.Data))
		if bytes.Equal(before[from*size:to*size], after[from*size:to*size]) {
			continue
		}
		for i := from; i < to; i++ {
			if string(before[i*size:(i+1)*size]) != string(after[i*size:(i+1)*size]) {
				v.Data[i] = v.decode(after, i)
			}
		}
	}
}

func (v *View) decode(b []byte, i int) float64 {
	if v.DType == dtype.Int32 { // float32 has not all integers
		return float64(int32(binary.LittleEndian.Uint32(b[4*i:])))
	}
	var x [1]float32
	storage.Decode(v.DType, x[:], b[i*v.DType.Size():])
	return float64(x[0])
}

// Index writes position n, in logical order, as (0, 1, 17, 8).
func (v *View) Index(n int) string {
	at := make([]string, len(v.Shape))
	for a := len(at) - 1; a >= 0; a-- {
		at[a] = fmt.Sprint(n % v.Shape[a])
		n /= v.Shape[a]
	}
	return "(" + strings.Join(at, ", ") + ")"
}

// where describes position i of Data for a message about garbage.
func (v *View) where(i int) string {
	last := v.Offset
	for a, s := range v.Shape {
		last += (s - 1) * v.Strides[a]
	}
	switch {
	case i < v.Offset:
		return fmt.Sprintf("%d before the first element", v.Offset-i)
	case i > last:
		return fmt.Sprintf("%d after the last element", i-last)
	}
	return "between the rows"
}
