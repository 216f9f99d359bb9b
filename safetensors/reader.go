package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/files"
)

// A File is an open safetensors file whose header has been checked. Its
// methods may be called by several goroutines at once, except Close.
type File struct {
	Metadata map[string]string // nil if the file has none

	tensors []Tensor // in the order of their data
	byName  map[string]Tensor
	r       io.ReaderAt
	data    int64 // where the data starts in r
	closer  io.Closer
	path    string
}

// Open opens and checks the file at path. Only a regular file is accepted: a
// pipe or a terminal has no size to check offsets against, and opening it
// could block.
func Open(path string) (_ *File, err error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	if !info.Mode().IsRegular() {
		return nil, fileError(path, fmt.Errorf("is %s, not a regular file", files.Kind(info.Mode())))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fileError(path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	if info, err = f.Stat(); err != nil {
		return nil, fileError(path, err)
	}
	file, err := read(f, info.Size())
	if err != nil {
		return nil, fileError(path, err)
	}
	file.closer, file.path = f, path
	return file, nil
}

// Read checks the safetensors file of the given size behind r.
func Read(r io.ReaderAt, size int64) (*File, error) {
	f, err := read(r, size)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return f, nil
}

func read(r io.ReaderAt, size int64) (*File, error) {
	if size < headerLengthBytes {
		return nil, fmt.Errorf("file of %d bytes is truncated: the header length alone takes %d", size, headerLengthBytes)
	}
	var field [headerLengthBytes]byte
	if err := readFull(r, field[:], 0); err != nil {
		return nil, fmt.Errorf("reading the header length: %w", err)
	}
	length := binary.LittleEndian.Uint64(field[:])
	rest := size - headerLengthBytes
	switch {
	case length > MaxHeaderBytes:
		return nil, fmt.Errorf("header length %d is larger than the limit of %d", length, MaxHeaderBytes)
	case length > uint64(rest):
		return nil, fmt.Errorf("header length %d is larger than the %d bytes that follow it", length, rest)
	}
	header := make([]byte, length)
	if err := readFull(r, header, headerLengthBytes); err != nil {
		return nil, fmt.Errorf("reading the header: %w", err)
	}
	tensors, metadata, err := parseHeader(header, rest-int64(length))
	if err != nil {
		return nil, err
	}
	f := &File{Metadata: metadata, tensors: tensors, byName: map[string]Tensor{}, r: r, data: headerLengthBytes + int64(length)}
	for _, t := range tensors {
		f.byName[t.Name] = t
	}
	return f, nil
}

// Tensors returns every tensor, in the order of their data.
func (f *File) Tensors() []Tensor { return append([]Tensor(nil), f.tensors...) }

// Tensor returns the tensor of that name.
func (f *File) Tensor(name string) (Tensor, bool) {
	t, ok := f.byName[name]
	return t, ok
}

// ReadAt fills p with the data of t from byte offset on: little-endian
// elements in row-major order. It fails if p is not filled.
func (f *File) ReadAt(t Tensor, p []byte, offset int64) error {
	if bytes := t.end - t.begin; offset < 0 || int64(len(p)) > bytes-offset {
		return fmt.Errorf("safetensors: tensor %.80q: bytes %d to %d are outside its %d", t.Name, offset, offset+int64(len(p)), bytes)
	}
	if err := readFull(f.r, p, f.data+t.begin+offset); err != nil {
		where := ""
		if f.path != "" {
			where = f.path + ": "
		}
		return fmt.Errorf("safetensors: %stensor %.80q: %w", where, t.Name, err)
	}
	return nil
}

// floatsPiece is how many elements are converted at a time.
const floatsPiece = 1 << 18

// Float32s reads all elements of a tensor of F32, F16 or BF16, in row-major order.
func (f *File) Float32s(t Tensor) ([]float32, error) {
	format, ok := map[DType]dtype.DType{F32: dtype.Float32, F16: dtype.Float16, BF16: dtype.BFloat16}[t.DType]
	if !ok {
		return nil, fmt.Errorf("safetensors: tensor %q is %s, want F32, F16 or BF16", t.Name, t.DType)
	}
	size := int64(format.Size())
	x := make([]float32, t.Bytes()/size)
	raw, at := make([]byte, size*floatsPiece), int64(0)
	for piece := range slices.Chunk(x, floatsPiece) {
		b := raw[:size*int64(len(piece))]
		if err := f.ReadAt(t, b, at); err != nil {
			return nil, err
		}
		storage.Decode(format, piece, b)
		at += int64(len(b))
	}
	return x, nil
}

// Close closes the file that Open opened. It may be called again.
func (f *File) Close() error {
	if f == nil || f.closer == nil {
		return nil
	}
	c := f.closer
	f.closer = nil
	return c.Close()
}

// readFull fills p from r at offset. If the file ends before that, it shrank after its size was
// taken.
func readFull(r io.ReaderAt, p []byte, offset int64) error {
	n, err := r.ReadAt(p, offset)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return fmt.Errorf("file ends %d bytes early", len(p)-n)
	}
	return files.Bare(err)
}

// fileError writes an error, also one of the os package, as "path: reason", once; nil stays nil.
func fileError(path string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("safetensors: %s: %w", path, files.Bare(err))
}
