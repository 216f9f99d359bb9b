// Package storage converts numbers to and from the bytes of a format, little endian, as tensors and files hold them.
package storage

import (
	"encoding/binary"
	"math"

	"github.com/flashvk/flashvk/dtype"
)

// Encode stores src in dst, which has room for it. An int32 takes the part of a number before the point, a bool
// whether it is 0.
func Encode(t dtype.DType, dst []byte, src []float32) {
	switch t {
	case dtype.Float16:
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], dtype.ToFloat16(x))
		}
	case dtype.BFloat16:
		for i, x := range src {
			binary.LittleEndian.PutUint16(dst[2*i:], dtype.ToBFloat16(x))
		}
	case dtype.E4M3:
		for i, x := range src {
			dst[i] = dtype.ToE4M3(x)
		}
	case dtype.Int32:
		for i, x := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], uint32(int32(x)))
		}
	case dtype.Int8:
		for i, x := range src {
			dst[i] = byte(dtype.ToInt8(x))
		}
	case dtype.Bool:
		for i, x := range src {
			dst[i] = 0
			if x != 0 {
				dst[i] = 1
			}
		}
	default:
		for i, x := range src {
			binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(x))
		}
	}
}

// Bytes returns what Encode stores.
func Bytes(t dtype.DType, src []float32) []byte {
	b := make([]byte, len(src)*t.Size())
	Encode(t, b, src)
	return b
}

// Decode reads as many numbers as dst has from src. A bool is 0 or 1.
func Decode(t dtype.DType, dst []float32, src []byte) {
	switch t {
	case dtype.Float16:
		for i := range dst {
			dst[i] = dtype.FromFloat16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case dtype.BFloat16:
		for i := range dst {
			dst[i] = dtype.FromBFloat16(binary.LittleEndian.Uint16(src[2*i:]))
		}
	case dtype.E4M3:
		for i := range dst {
			dst[i] = dtype.FromE4M3(src[i])
		}
	case dtype.Int32:
		for i := range dst {
			dst[i] = float32(int32(binary.LittleEndian.Uint32(src[4*i:])))
		}
	case dtype.Int8:
		for i := range dst {
			dst[i] = float32(int8(src[i]))
		}
	case dtype.Bool:
		for i := range dst {
			dst[i] = float32(min(src[i], 1))
		}
	default:
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	}
}
