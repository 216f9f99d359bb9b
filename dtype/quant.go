package dtype

import (
	"fmt"
	"math"
)

// A Quant is a format of numbers as elements of 8 bits that share scales: a number is about
// element * scale.
//
//	name  elements  scales   largest element  what shares a scale
//	int8  Int8      float32  127              a row, a column, a block, a head or a tensor
//	q8_0  Int8      float16  127              32 elements of a row: ggml's numbers
//	e4m3  E4M3      float32  448              the same as of int8
//
// With amax, the largest magnitude of the numbers that share a scale,
//
//	scale   = round(amax / largest element)   to the format of the scale
//	element = round(number / scale)           ties to even; 0 for a scale of 0
//
// A NaN does not count in amax. It stays NaN in e4m3, and is 0 in the others. An infinity counts as
// the largest float32, and becomes the largest element. A scale of q8_0 is at most 515.5, 127 times
// which is a float16; numbers beyond become the largest element, too. An amax below 2^-100 counts as
// 0: devices may take the scale of a smaller one for 0.
type Quant uint8

// The formats. The zero value is none: elements are the numbers.
const (
	NoQuant Quant = iota
	QuantInt8
	QuantQ8
	QuantE4M3
)

// Q8Block is the number of elements of a row that share a scale in q8_0.
const Q8Block = 32

// quants has what there is to know of each format.
var quants = [...]struct {
	name           string
	element, scale DType
	largest        float64 // element
	most           float64 // scale
	block          int
}{
	NoQuant:   {name: "none"},
	QuantInt8: {"int8", Int8, Float32, 127, math.MaxFloat32, 0},
	QuantQ8:   {"q8_0", Int8, Float16, 127, 515.5, Q8Block},
	QuantE4M3: {"e4m3", E4M3, Float32, 448, math.MaxFloat32, 0},
}

// Quants lists the formats.
func Quants() []Quant { return []Quant{QuantInt8, QuantQ8, QuantE4M3} }

// Valid reports whether q is a format, and not none.
func (q Quant) Valid() bool { return q != NoQuant && q <= QuantE4M3 }

// String returns the name: int8, q8_0, e4m3, or none.
func (q Quant) String() string {
	if q > QuantE4M3 {
		return fmt.Sprintf("Quant(%d)", uint8(q))
	}
	return quants[q].name
}

// Element returns the format of elements.
func (q Quant) Element() DType { return quants[q].element }

// ScaleDType returns the format of scales.
func (q Quant) ScaleDType() DType { return quants[q].scale }

// Largest returns the largest element.
func (q Quant) Largest() float64 { return quants[q].largest }

// Block returns how many elements of a row share a scale, where the format says it: Q8Block, else 0.
func (q Quant) Block() int { return quants[q].block }

// Scale returns the scale of numbers with that largest magnitude, as it is stored.
func (q Quant) Scale(amax float64) float64 {
	if amax < 0x1p-100 {
		return 0
	}
	x := &quants[q]
	return float64(x.scale.Round(float32(min(amax, math.MaxFloat32, x.largest*x.most) / x.largest)))
}

// Round returns the element of a number.
func (q Quant) Round(x, scale float64) float64 {
	if q.Element() == E4M3 && math.IsNaN(x) {
		return x
	}
	if scale == 0 {
		return 0
	}
	largest := q.Largest()
	return float64(q.Element().Round(float32(max(-largest, min(x/scale, largest)))))
}
