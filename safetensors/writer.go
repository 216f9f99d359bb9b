package safetensors

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

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
	data     int64
	sections map[string]*section
	order    []Tensor
}

// Create starts a file with the given tensors. It uses their Name, DType and Shape only. In the
// file, larger elements come first, then names in order, so that every tensor is aligned to its
// element.
//
// The caller writes the data of each tensor through Tensor, calls Commit, and calls Close in any
// case.
func Create(path string, tensors []Tensor, metadata map[string]string) (_ *Writer, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("safetensors: %s: %w", path, files.Bare(err))
		}
	}()
	order, err := layout(tensors)
	if err != nil {
		return nil, err
	}
	header, err := encodeHeader(order, metadata)
	if err != nil {
		return nil, err
	}
	w := &Writer{path: path, data: int64(len(header)), sections: make(map[string]*section), order: order}
	if w.f, err = files.Create(path); err != nil {
		return nil, err
	}
	for _, t := range order {
		w.sections[t.Name] = &section{w: w, t: t}
	}
	if _, err := w.f.Write(header); err != nil {
		w.Close()
		return nil, err
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
		if d := b.DType.Bits() - a.DType.Bits(); d != 0 {
			return d
		}
		return strings.Compare(a.Name, b.Name)
	})
	seen := make(map[string]bool)
	var end int64
	for i := range order {
		t := &order[i]
		if t.Name == MetadataName {
			return nil, fmt.Errorf("tensor %s: the name is taken", quote(t.Name))
		}
		if seen[t.Name] {
			return nil, fmt.Errorf("tensor %s: name occurs twice", quote(t.Name))
		}
		seen[t.Name] = true
		n, err := byteSize(t.DType, t.Shape)
		if err != nil {
			return nil, fmt.Errorf("tensor %s: %w", quote(t.Name), err)
		}
		if end+n > maxBytes {
			return nil, fmt.Errorf("tensor %s: the file would be larger than 2^60 bytes", quote(t.Name))
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
		return nil, fmt.Errorf("safetensors: %s: tensor %s was not announced", w.path, quote(name))
	}
	return s, nil
}

// Commit makes the file appear under its name. If the data of a tensor is not complete it fails,
// and the old file stays.
func (w *Writer) Commit() (err error) {
	defer w.Close()
	defer func() {
		if err != nil {
			err = fmt.Errorf("safetensors: %s: %w", w.path, files.Bare(err))
		}
	}()
	if w.f == nil {
		return errors.New("the writer is closed")
	}
	for _, t := range w.order {
		if n := w.sections[t.Name].written; n != t.Bytes() {
			return fmt.Errorf("tensor %s: %d of %d bytes were written", quote(t.Name), n, t.Bytes())
		}
	}
	return w.f.Commit()
}

// Close removes what was not committed. It may be called again.
func (w *Writer) Close() error {
	if w == nil || w.f == nil {
		return nil
	}
	err := w.f.Close()
	w.f = nil
	if err != nil {
		return fmt.Errorf("safetensors: %s: %w", w.path, files.Bare(err))
	}
	return nil
}

// A section is the part of the file that holds one tensor.
type section struct {
	w       *Writer
	t       Tensor
	written int64
}

// Write appends p to the tensor's data.
func (s *section) Write(p []byte) (int, error) {
	if s.w.f == nil {
		return 0, fmt.Errorf("safetensors: %s: the writer is closed", s.w.path)
	}
	if int64(len(p)) > s.t.Bytes()-s.written {
		return 0, fmt.Errorf("safetensors: %s: tensor %s: more than its %d bytes were written", s.w.path, quote(s.t.Name), s.t.Bytes())
	}
	n, err := s.w.f.WriteAt(p, s.w.data+s.t.begin+s.written)
	s.written += int64(n)
	if err != nil {
		return n, fmt.Errorf("safetensors: %s: %w", s.w.path, files.Bare(err))
	}
	return n, nil
}
