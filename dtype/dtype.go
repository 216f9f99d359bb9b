// Package dtype names the number formats that tensors are stored in and converts them to and from
// float32.
//
//	name      bits  exponent  fraction  largest    smallest normal
//	float16   16    5         10        65504      6.1e-05
//	bfloat16  16    8         7         3.39e+38   1.2e-38
//	float32   32    8         23        3.40e+38   1.2e-38
//
// Lengths are int32. Masks are bool, a byte of 0 or 1. The formats that follow store numbers
// divided by a scale that several of them share, as a [Quant] says:
//
//	int8      8                         127
//	e4m3      8     4         3         448        2^-6
//
// E4M3 has no infinity. Its NaN are 0x7f and 0xff.
//
// Conversions to a narrower format round to nearest, ties to even. Values beyond the largest
// become infinite, in e4m3 ±448, in int8 -128 or 127. NaN stays NaN, in int8 it becomes 0.
// Subnormal numbers are kept.
package dtype

import (
	"encoding/json"
	"fmt"
	"math"
)

// A DType is a storage format. The zero value is Float32.
type DType uint8

// The formats that kernels read and write.
const (
	Float32 DType = iota
	Float16
	BFloat16
	Int32 // lengths
	Bool  // masks: a byte, 0 or 1
	E4M3  // elements of a Quant: a float of 8 bits
	Int8  // elements of a Quant
)

// formats has what there is to know of each format.
var formats = [...]struct {
	name, short string
	size        int
}{
	Float32: {"float32", "f32", 4}, Float16: {"float16", "f16", 2}, BFloat16: {"bfloat16", "bf16", 2},
	Int32: {"int32", "int32", 4}, Bool: {"bool", "bool", 1}, E4M3: {"e4m3", "e4m3", 1}, Int8: {"int8", "int8", 1},
}

// All lists the formats that kernels compute in.
func All() []DType { return []DType{Float32, Float16, BFloat16} }

// Valid reports whether t is one of the named formats.
func (t DType) Valid() bool { return t <= Int8 }

// Float reports whether t is a floating-point format that kernels compute in.
func (t DType) Float() bool { return t <= BFloat16 }

// String returns the long name, as in flags and benchmark keys.
func (t DType) String() string {
	if !t.Valid() {
		return fmt.Sprintf("DType(%d)", uint8(t))
	}
	return formats[t].name
}

// Short returns the short name, as in shader variants: f32, f16, bf16.
func (t DType) Short() string {
	if !t.Valid() {
		return t.String()
	}
	return formats[t].short
}

// Parse accepts the long and the short names of the floating-point formats, and the names fp16,
// half and fp32 of other libraries.
func Parse(name string) (DType, error) {
	for _, t := range All() {
		if name == t.String() || name == t.Short() {
			return t, nil
		}
	}
	switch name {
	case "fp16", "half":
		return Float16, nil
	case "fp32":
		return Float32, nil
	}
	return 0, fmt.Errorf("dtype: %q is not one of float32, float16, bfloat16", name)
}

// Size returns the size of one element in bytes, 1 of what is no format.
func (t DType) Size() int {
	if !t.Valid() {
		return 1
	}
	return formats[t].size
}

// Eps returns the distance from 1 to the next larger number of a
// floating-point format.
func (t DType) Eps() float64 {
	switch t {
	case Float16:
		return 0x1p-10
	case BFloat16:
		return 0x1p-7
	}
	return 0x1p-23
}

// Round returns x as a floating-point format, E4M3 or Int8 stores it, and x itself for other formats.
func (t DType) Round(x float32) float32 {
	switch t {
	case Float16:
		// The normal numbers of the format: 13 bits are dropped.
		if b := math.Float32bits(x); b&0x7fffffff-0x38800000 < 0x477ff000-0x38800000 {
			return math.Float32frombits((b + 0xfff + b>>13&1) &^ 0x1fff)
		}
		return FromFloat16(ToFloat16(x))
	case BFloat16:
		return FromBFloat16(ToBFloat16(x))
	case E4M3:
		return FromE4M3(ToE4M3(x))
	case Int8:
		return float32(ToInt8(x))
	}
	return x
}

// ToInt8 returns the integer that is nearest to x, ties to even, within -128 to 127; 0 for NaN.
func ToInt8(x float32) int8 {
	if x != x {
		return 0
	}
	return int8(math.RoundToEven(float64(max(-128, min(x, 127)))))
}

// ToBFloat16 returns the bits of x in bfloat16.
func ToBFloat16(x float32) uint16 {
	b := math.Float32bits(x)
	if b&0x7fffffff > 0x7f800000 { // a NaN whose payload is cut off must stay one
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// FromBFloat16 returns the value of bfloat16 bits, exactly.
func FromBFloat16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// ToFloat16 returns the bits of x in float16.
func ToFloat16(x float32) uint16 {
	b := math.Float32bits(x)
	sign := uint16(b >> 16 & 0x8000)
	mag := b & 0x7fffffff
	switch {
	case mag > 0x7f800000: // NaN
		return sign | 0x7e00 | uint16(mag>>13&0x1ff)
	case mag >= 0x477ff000: // rounds to 65536 or more, or is infinite
		return sign | 0x7c00
	case mag >= 0x38800000: // normal: rebias 127 to 15, drop 13 bits
		return sign | uint16((mag-(112<<23)+0xfff+mag>>13&1)>>13)
	}
	// Subnormal: adding 0.5 aligns the last kept bit, 2^-24, with the last bit
	// of a float32 in [0.5, 1), so the addition itself rounds to even.
	f := math.Float32frombits(mag) + 0.5
	return sign | uint16(math.Float32bits(f)-math.Float32bits(0.5))
}

// FromFloat16 returns the value of float16 bits, exactly.
func FromFloat16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exp, frac := uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0:
		f := math.Float32bits(float32(frac) * 0x1p-24)
		return math.Float32frombits(sign | f)
	case 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

// ToE4M3 returns the bits of the number of e4m3 that is nearest to x, ties to even. Beyond ±448
// it returns ±448.
func ToE4M3(x float32) uint8 {
	b := math.Float32bits(x)
	sign := uint8(b >> 24 & 0x80)
	mag := b & 0x7fffffff
	switch {
	case mag > 0x7f800000: // NaN
		return sign | 0x7f
	case mag >= 0x43e00000: // 448
		return sign | 0x7e
	case mag >= 0x3c800000: // normal, 2^-6 and more: rebias 127 to 7, drop 20 bits
		return sign | uint8((mag-(120<<23)+0x7ffff+mag>>20&1)>>20)
	}
	// Subnormal: adding 2^14 aligns the last kept bit, 2^-9, with the last bit of the sum, so the
	// addition itself rounds to even.
	f := math.Float32frombits(mag) + 0x1p14
	return sign | uint8(math.Float32bits(f)-math.Float32bits(0x1p14))
}

// FromE4M3 returns the value of e4m3 bits, exactly.
func FromE4M3(b uint8) float32 {
	mag := b & 0x7f
	if mag == 0x7f {
		return float32(math.NaN())
	}
	// The same bits as a float16 are 2^-8 times the number, subnormals too.
	x := FromFloat16(uint16(mag)<<7) * 0x1p8
	if b&0x80 != 0 {
		return -x
	}
	return x
}

// An Option is a DType or none. It is the format of an output that has the format of an input
// unless a caller says otherwise. The zero value is none.
type Option uint8

// Some returns t as an Option.
func Some(t DType) Option { return Option(t) + 1 }

// Or returns the format of o, and t where o is none.
func (o Option) Or(t DType) DType {
	if o == 0 {
		return t
	}
	return DType(o - 1)
}

// String returns the name of the format, or none.
func (o Option) String() string {
	if o == 0 {
		return "none"
	}
	return DType(o - 1).String()
}

// MarshalJSON writes a format as DType does, none as null.
func (o Option) MarshalJSON() ([]byte, error) {
	if o == 0 {
		return []byte("null"), nil
	}
	return json.Marshal(DType(o - 1))
}

// UnmarshalJSON reads what MarshalJSON writes.
func (o *Option) UnmarshalJSON(text []byte) error {
	var t *DType
	if err := json.Unmarshal(text, &t); err != nil {
		return fmt.Errorf("dtype: %w", err)
	}
	switch {
	case t == nil:
		*o = 0
	case !t.Valid():
		return fmt.Errorf("dtype: %d is not a format", *t)
	default:
		*o = Some(*t)
	}
	return nil
}
