package safetensors

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
)

// floatsPiece is how many elements are converted at a time.
const floatsPiece = 1 << 18

// Float32s reads all elements of a tensor of F32, F16 or BF16, in row-major order.
func (f *File) Float32s(t Tensor) ([]float32, error) {
	format, ok := map[DType]dtype.DType{F32: dtype.Float32, F16: dtype.Float16, BF16: dtype.BFloat16}[t.DType]
	if !ok {
		return nil, fmt.Errorf("safetensors: tensor %q is %s, want F32, F16 or BF16", t.Name, t.DType)
	}
	size := int64(t.DType.Bits() / 8)
	x := make([]float32, t.Bytes()/size)
	piece := make([]byte, min(t.Bytes(), size*floatsPiece))
	for at := int64(0); at < t.Bytes(); at += int64(len(piece)) {
		piece = piece[:min(t.Bytes()-at, int64(len(piece)))]
		if err := f.ReadAt(t, piece, at); err != nil {
			return nil, err
		}
		storage.Decode(format, x[at/size:(at+int64(len(piece)))/size], piece)
	}
	return x, nil
}

// WriteFloat32s writes all elements of a tensor of F32, in row-major order. It is an error if x has
// more or fewer.
func (w *Writer) WriteFloat32s(name string, x []float32) error {
	to, err := w.Tensor(name)
	if err != nil {
		return err
	}
	t := w.sections[name].t
	if n := t.Bytes() / 4; t.DType != F32 || int64(len(x)) != n {
		return fmt.Errorf("safetensors: %s: %d float32 for tensor %s, which is %s with shape %v", w.path, len(x), quote(name), t.DType, t.Shape)
	}
	b := make([]byte, 4*min(len(x), floatsPiece))
	for piece := range slices.Chunk(x, floatsPiece) {
		b = b[:4*len(piece)]
		storage.Encode(dtype.Float32, b, piece)
		if _, err := to.Write(b); err != nil {
			return err
		}
	}
	return nil
}
