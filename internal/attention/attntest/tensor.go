package attntest

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/flashvk/flashvk/dtype"
)

// A Tensor is a strided view of a backing slice. Element (i0, i1, …) is
// Data[Offset + i0*Strides[0] + i1*Strides[1] + …]; everything else in Data
// is garbage that an implementation must not use and must not change.
type Tensor struct {
	Name  string      // "O", "LSE", or that of an argument: "q", "key_mask", "dbias"
	DType dtype.DType // what Data's values can be stored as

	// Data holds float64 so that float64 implementations are checked to their
	// own precision. Values of inputs are exact in DType.
	Data []float64

	Offset  int   // elements
	Shape   []int // as package problem has it
	Strides []int // elements; the last is 1
}

// NumElements returns the product of the shape.
func (t *Tensor) NumElements() int {
	n := 1
	for _, s := range t.Shape {
		n *= s
	}
	return n
}

// rows calls f with the position in Data of each run along the last axis, in
// logical order.
func (t *Tensor) rows(f func(at int)) {
	index := make([]int, len(t.Shape)-1)
	for {
		at := t.Offset
		for a, i := range index {
			at += i * t.Strides[a]
		}
		f(at)
		a := len(index) - 1
		for ; a >= 0; a-- {
			index[a]++
			if index[a] < t.Shape[a] {
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
func (t *Tensor) Gather() []float64 {
	out := make([]float64, 0, t.NumElements())
	n := t.Shape[len(t.Shape)-1]
	t.rows(func(at int) { out = append(out, t.Data[at:at+n]...) })
	return out
}

// Scatter sets the elements from logical order. len(src) must be NumElements.
func (t *Tensor) Scatter(src []float64) {
	n := t.Shape[len(t.Shape)-1]
	t.rows(func(at int) {
		copy(t.Data[at:at+n], src[:n])
		src = src[n:]
	})
}

// fillGarbage sets everything in Data that is no element: garbage(i) at i.
func (t *Tensor) fillGarbage(garbage func(i int) float64) {
	elements := t.Gather()
	for i := range t.Data {
		t.Data[i] = garbage(i)
	}
	t.Scatter(elements)
}

// Encode returns Data in the storage format, little endian, as a device's
// buffer holds it. NaN, Inf and values of DType survive Encode and Decode.
func (t *Tensor) Encode() []byte {
	b := make([]byte, 0, len(t.Data)*t.DType.Size())
	for _, x := range t.Data {
		switch t.DType {
		case dtype.Float16:
			b = binary.LittleEndian.AppendUint16(b, dtype.ToFloat16(float32(x)))
		case dtype.BFloat16:
			b = binary.LittleEndian.AppendUint16(b, dtype.ToBFloat16(float32(x)))
		case dtype.Int32:
			b = binary.LittleEndian.AppendUint32(b, uint32(int32(x)))
		case dtype.Bool:
			b = append(b, byte(x))
		default:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		}
	}
	return b
}

// Decode sets Data from what Encode returns. It panics if the length differs.
func (t *Tensor) Decode(b []byte) {
	size := t.DType.Size()
	if len(b) != len(t.Data)*size {
		panic(fmt.Sprintf("attntest: %s: %d bytes for %d elements of %v", t.Name, len(b), len(t.Data), t.DType))
	}
	for i := range t.Data {
		switch t.DType {
		case dtype.Float16:
			t.Data[i] = float64(dtype.FromFloat16(binary.LittleEndian.Uint16(b[i*size:])))
		case dtype.BFloat16:
			t.Data[i] = float64(dtype.FromBFloat16(binary.LittleEndian.Uint16(b[i*size:])))
		case dtype.Int32:
			t.Data[i] = float64(int32(binary.LittleEndian.Uint32(b[i*size:])))
		case dtype.Bool:
			t.Data[i] = float64(b[i*size])
		default:
			t.Data[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i*size:])))
		}
	}
}

// index writes position n of an output, in logical order, as (b=0, h=1, i=17, d=8):
// with the axes that the tensor has; i counts rows, or keys in dk and dv, j keys. In
// packed ones i counts all rows.
func (t *Tensor) index(n int) string {
	axes := "bhid"
	switch {
	case t.Name == "dbias":
		axes = "bhij"
	case t.Name == "dsinks":
		axes = "h"
	case isLSE(t.Name) && len(t.Shape) == 2:
		axes = "hi"
	case !isLSE(t.Name) && len(t.Shape) == 3:
		axes = "ihd"
	}
	at := make([]string, len(t.Shape))
	for a := len(at) - 1; a >= 0; a-- {
		at[a] = fmt.Sprintf("%c=%d", axes[a], n%t.Shape[a])
		n /= t.Shape[a]
	}
	return "(" + strings.Join(at, ", ") + ")"
}

// where describes position i of Data for a message about garbage.
func (t *Tensor) where(i int) string {
	last := t.Offset
	for a, s := range t.Shape {
		last += (s - 1) * t.Strides[a]
	}
	switch {
	case i < t.Offset:
		return fmt.Sprintf("%d before the first element", t.Offset-i)
	case i > last:
		return fmt.Sprintf("%d after the last element", i-last)
	}
	return "between the rows"
}

// same reports whether a and b are the same value, NaN being itself.
func same(a, b float64) bool { return a == b || a != a && b != b }
