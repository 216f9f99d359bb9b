package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

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
		return nil, fmt.Errorf("safetensors: %s: is %s, not a regular file", path, files.Kind(info.Mode()))
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
		return nil, fmt.Errorf("safetensors: %s: %w", path, err)
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
	f := &File{
		Metadata: metadata,
		tensors:  tensors,
		byName:   make(map[string]Tensor, len(tensors)),
		r:        r,
		data:     headerLengthBytes + int64(length),
	}
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
		return fmt.Errorf("safetensors: tensor %s: bytes %d to %d are outside its %d", quote(t.Name), offset, offset+int64(len(p)), bytes)
	}
	if err := readFull(f.r, p, f.data+t.begin+offset); err != nil {
		where := ""
		if f.path != "" {
			where = f.path + ": "
		}
		return fmt.Errorf("safetensors: %stensor %s: %w", where, quote(t.Name), err)
	}
	return nil
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

// fileError writes an error of the os package as "path: reason", once.
func fileError(path string, err error) error {
	return fmt.Errorf("safetensors: %s: %w", path, files.Bare(err))
}
