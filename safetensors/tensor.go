// Package safetensors reads and writes safetensors files, strictly.
//
// A file is
//
//	bytes        content
//	0 … 7        N, the length of the header: unsigned 64-bit, little-endian
//	8 … 7+N      the header: a JSON object, padded at its end with spaces (0x20)
//	8+N …        the data of all tensors, one after another, without holes
//
// and the header maps each tensor's name to its description:
//
//	{"__metadata__": {"any": "text"},
//	 "q": {"dtype": "F16", "shape": [1, 8, 512, 64], "data_offsets": [0, 524288]}}
//
// Offsets count from the first byte of the data; a tensor occupies
// [begin, end). Elements are little-endian, in row-major order (the last axis
// is contiguous).
//
// Strictly means that a file is refused, with one line that names the tensor,
// the value and the rule, if a name occurs twice, a field is missing or
// unknown, offsets overlap, leave a hole, run past the end of the file or do not agree
// with dtype and shape, or bytes are left over. The header is limited to
// MaxHeaderBytes before anything is allocated for it, and the data of a tensor is read only
// when asked for.
//
// Source: the format description in the README of
// github.com/huggingface/safetensors.
package safetensors

import (
	"fmt"
	"math"
	"math/bits"
)

// MaxHeaderBytes is the longest header that is read, the limit of the
// reference implementation.
const MaxHeaderBytes = 100_000_000

// MetadataName is the header's key for free text; no tensor may have this
// name.
const MetadataName = "__metadata__"

// headerLengthBytes is the size of the length field at the start of a file.
const headerLengthBytes = 8

// A DType is the name of an element format as the header writes it, such as
// F16, BF16, F32, I64.
type DType string

// The floating-point formats that flashvk computes with.
const (
	F16  DType = "F16"
	BF16 DType = "BF16"
	F32  DType = "F32"
)

// dtypeBits maps every format of the specification to its bits per element.
var dtypeBits = map[DType]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
	"I16": 16, "U16": 16, F16: 16, BF16: 16,
	"I32": 32, "U32": 32, F32: 32,
	"I64": 64, "U64": 64, "F64": 64, "C64": 64,
	"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}

// Bits returns the bits of one element, 0 for a format that the specification lacks.
func (t DType) Bits() int { return int(dtypeBits[t]) }

// A Tensor describes one tensor of a file.
type Tensor struct {
	Name  string
	DType DType
	Shape []int

	begin, end int64 // its bytes, counted from the start of the data
}

// Bytes returns the size of the data, which follows from DType and Shape; 0 where they are not
// valid.
func (t Tensor) Bytes() int64 {
	n, err := byteSize(t.DType, t.Shape)
	if err != nil {
		return 0
	}
	return n
}

// maxBytes is the largest tensor and the largest file. Sums of a few of them
// fit int64.
const maxBytes = 1 << 60

// byteSize returns the size that dtype and shape ask for,
//
//	bytes = bits(dtype) * shape[0] * shape[1] * … / 8,
//
// 1 element for an empty shape. It fails if the size is larger than maxBytes
// or not a whole number of bytes.
func byteSize(t DType, shape []int) (int64, error) {
	n, ok := dtypeBits[t]
	if !ok {
		return 0, fmt.Errorf("dtype %.80q is not known", t)
	}
	for _, d := range shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %s has a negative size", shapeText(shape))
		}
		hi, lo := bits.Mul64(n, uint64(d))
		if n = lo; hi != 0 {
			n = math.MaxUint64
			break
		}
	}
	switch {
	case n/8 > maxBytes:
		return 0, fmt.Errorf("shape %s of %s is larger than 2^60 bytes", shapeText(shape), t)
	case n%8 != 0:
		return 0, fmt.Errorf("shape %s of %s is not a whole number of bytes", shapeText(shape), t)
	}
	return int64(n / 8), nil
}
