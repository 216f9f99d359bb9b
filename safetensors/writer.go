package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
	"github.com/flashvk/flashvk/internal/files"
)

// headerAlign is what the header is padded to, so that the data starts at a
// multiple of it.
const headerAlign = 8

// A Writer writes one file. The bytes go to a temporary name in the folder of
// the file; Commit gives it the real name, so that a reader sees the old
// file, no file, or the complete new one, never a part. Close without Commit
// removes the temporary file.
type Writer struct {
	path     string
	f        *files.File
	sections map[string]*section
}

// Create starts a file with the given tensors. It uses their Name, DType and Shape only. In the
// file, larger elements come first, then names in order, so that every tensor is aligned to its
// element.
//
// The caller writes the data of each tensor through Tensor, calls Commit, and calls Close in any
// case.
func Create(path string, tensors []Tensor, metadata map[string]string) (*Writer, error) {
	order, err := layout(tensors)
	if err != nil {
		return nil, fileError(path, err)
	}
	header, err := encodeHeader(order, metadata)
	if err != nil {
		return nil, fileError(path, err)
	}
	w := &Writer{path: path, sections: map[string]*section{}}
	for _, t := range order {
		w.sections[t.Name] = &section{w: w, t: t, at: int64(len(header)) + t.begin}
	}
	if w.f, err = files.Create(path); err == nil {
		_, err = w.f.Write(header)
	}
	if err != nil {
		w.Close()
		return nil, fileError(path, err)
	}
	return w, nil
}

// CanCreate returns the error that Create would return for a path, and leaves no file.
func CanCreate(path string) error {
	w, err := Create(path, nil, nil)
	if err != nil {
		return err
	}
	return w.Close()
}

// layout gives every tensor its place in the data.
func layout(tensors []Tensor) ([]Tensor, error) {
	order := slices.Clone(tensors)
	slices.SortStableFunc(order, func(a, b Tensor) int {
		return cmp.Or(b.DType.Bits()-a.DType.Bits(), strings.Compare(a.Name, b.Name))
	})
	seen := map[string]bool{}
	var end int64
	for i := range order {
		t := &order[i]
		if t.Name == MetadataName {
			return nil, fmt.Errorf("tensor %q: the name is taken", t.Name)
		}
		if seen[t.Name] {
			return nil, fmt.Errorf("tensor %.80q: name occurs twice", t.Name)
		}
		seen[t.Name] = true
		n, err := byteSize(t.DType, t.Shape)
		if err != nil {
			return nil, fmt.Errorf("tensor %.80q: %w", t.Name, err)
		}
		if end+n > maxBytes {
			return nil, fmt.Errorf("tensor %.80q: the file would be larger than 2^60 bytes", t.Name)
		}
		t.begin, t.end = end, end+n
		end = t.end
	}
	return order, nil
}

func encodeHeader(order []Tensor, metadata map[string]string) ([]byte, error) {
	b := bytes.NewBuffer(make([]byte, headerLengthBytes))
	sep := "{"
	member := func(key string, value any) {
		name, _ := json.Marshal(key) // neither fails: there are strings, integers, and lists and maps of them
		text, _ := json.Marshal(value)
		fmt.Fprintf(b, "%s%s:%s", sep, name, text)
		sep = ","
	}
	if len(metadata) > 0 {
		member(MetadataName, metadata)
	}
	for _, t := range order {
		member(t.Name, struct {
			DType   DType    `json:"dtype"`
			Shape   []int    `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}{t.DType, append([]int{}, t.Shape...), [2]int64{t.begin, t.end}}) // a scalar's is [], null would not be a list
	}
	if sep == "{" {
		b.WriteString("{")
	}
	b.WriteString("}")
	for b.Len()%headerAlign != 0 {
		b.WriteString(" ")
	}
	length := b.Len() - headerLengthBytes
	if length > MaxHeaderBytes {
		return nil, fmt.Errorf("header of %d bytes is larger than the limit of %d", length, MaxHeaderBytes)
	}
	header := b.Bytes()
	binary.LittleEndian.PutUint64(header, uint64(length))
	return header, nil
}

// Tensor returns a writer for the data of the tensor of that name, from its first byte on.
// Tensors may be written in any order.
func (w *Writer) Tensor(name string) (io.Writer, error) {
	s, ok := w.sections[name]
	if !ok {
		return nil, fileError(w.path, fmt.Errorf("tensor %.80q was not announced", name))
	}
	return s, nil
}

// WriteFloat32s writes all elements of a tensor of F32, in row-major order. It is an error if x has
// more or fewer.
func (w *Writer) WriteFloat32s(name string, x []float32) error {
	to, err := w.Tensor(name)
	if err != nil {
		return err
	}
	if t := w.sections[name].t; t.DType != F32 || int64(len(x)) != t.Bytes()/4 {
		return fileError(w.path, fmt.Errorf("%d float32 for tensor %.80q, which is %s with shape %v", len(x), name, t.DType, t.Shape))
	}
	for piece := range slices.Chunk(x, floatsPiece) {
		if _, err := to.Write(storage.Bytes(dtype.Float32, piece)); err != nil {
			return err
		}
	}
	return nil
}

// Commit makes the file appear under its name. If the data of a tensor is not complete it fails,
// and the old file stays.
func (w *Writer) Commit() error {
	defer w.Close()
	if w.f == nil {
		return fileError(w.path, errClosed)
	}
	for _, s := range w.sections {
		if s.written != s.t.Bytes() {
			return fileError(w.path, fmt.Errorf("tensor %.80q: %d of %d bytes were written", s.t.Name, s.written, s.t.Bytes()))
		}
	}
	return fileError(w.path, w.f.Commit())
}

var errClosed = errors.New("the writer is closed")

// Close removes what was not committed. It may be called again.
func (w *Writer) Close() error {
	if w == nil || w.f == nil {
		return nil
	}
	err := w.f.Close()
	w.f = nil
	return fileError(w.path, err)
}

// A section is the part of the file that holds one tensor.
type section struct {
	w           *Writer
	t           Tensor
	at, written int64 // where it begins, and how much of it there is
}

// Write appends p to the tensor's data.
func (s *section) Write(p []byte) (n int, err error) {
	switch {
	case s.w.f == nil:
		err = errClosed
	case int64(len(p)) > s.t.Bytes()-s.written:
		err = fmt.Errorf("tensor %.80q: more than its %d bytes were written", s.t.Name, s.t.Bytes())
	default:
		n, err = s.w.f.WriteAt(p, s.at+s.written)
		s.written += int64(n)
	}
	return n, fileError(s.w.path, err)
}
