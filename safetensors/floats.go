package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/flashvk/flashvk/dtype"
)

// floatsPiece is how many elements are converted at a time.
const floatsPiece = 1 << 18

// Float32s reads all elements of a tensor of F32, F16 or BF16, in row-major order.
func (f *File) Float32s(t Tensor) ([]float32, error) {
	var convert func([]byte) float32
	switch t.DType {
	case F32:
		convert = func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
	case F16:
		convert = func(b []byte) float32 { return dtype.FromFloat16(binary.LittleEndian.Uint16(b)) }
	case BF16:
		convert = func(b []byte) float32 { return dtype.FromBFloat16(binary.LittleEndian.Uint16(b)) }
	default:
		return nil, fmt.Errorf("safetensors: tensor %q is %s, want F32, F16 or BF16", t.Name, t.DType)
	}
	size := int64(t.DType.Bits() / 8)
	x := make([]float32, 0, t.Bytes()/size)
	piece := make([]byte, min(t.Bytes(), size*floatsPiece))
	for at := int64(0); at < t.Bytes(); at += int64(len(piece)) {
		piece = piece[:min(t.Bytes()-at, int64(len(piece)))]
		if err := f.ReadAt(t, piece, at); err != nil {
			return nil, err
		}
		for i := int64(0); i < int64(len(piece)); i += size {
			x = append(x, convert(piece[i:]))
		}
	}
	return x, nil
}

// WriteFloat32s writes all elements of a tensor of F32, in row-major order.
func (w *Writer) WriteFloat32s(name string, x []float32) error {
	to, err := w.Tensor(name)
	if err != nil {
		return err
	}
	piece := make([]byte, 0, 4*min(len(x), floatsPiece))
	for ; len(x) > 0; x = x[min(len(x), floatsPiece):] {
		piece = piece[:0]
		for _, v := range x[:min(len(x), floatsPiece)] {
			piece = binary.LittleEndian.AppendUint32(piece, math.Float32bits(v))
		}
		if _, err := to.Write(piece); err != nil {
			return err
		}
	}
	return nil
}
