package safetensors

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// write creates path with tensors and fills tensor i with byte i+1.
func write(path string, tensors []Tensor, metadata map[string]string) error {
	w, err := Create(path, tensors, metadata)
	if err != nil {
		return err
	}
	defer w.Close()
	for i, t := range tensors {
		n, err := byteSize(t.DType, t.Shape)
		if err != nil {
			return err
		}
		s, err := w.Tensor(t.Name)
		if err != nil {
			return err
		}
		data := bytes.Repeat([]byte{byte(i + 1)}, int(n))
		for len(data) > 0 { // in pieces, as a caller with a large tensor would
			piece := data[:min(5, len(data))]
			if _, err := s.Write(piece); err != nil {
				return err
			}
			data = data[len(piece):]
		}
	}
	return w.Commit()
}

// onlyFiles fails the test unless dir holds exactly these names.
func onlyFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("folder holds %q, want %q", got, want)
	}
}

func TestWriteRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	tensors := []Tensor{
		{Name: "a", DType: "U8", Shape: []int{3}},
		{Name: "o", DType: F16, Shape: []int{1, 3}},
		{Name: "lse", DType: F32, Shape: []int{1, 1, 3}},
		{Name: "empty", DType: F32, Shape: []int{0}},
		{Name: "scalar", DType: "U8"},
		{Name: `quote " and é`, DType: BF16, Shape: []int{1}},
	}
	if err := write(path, tensors, map[string]string{"scale": "1"}); err != nil {
		t.Fatal(err)
	}
	onlyFiles(t, dir, "x.safetensors")

	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(raw)
	if n%headerAlign != 0 {
		t.Errorf("header of %d bytes does not end at a multiple of %d", n, headerAlign)
	}
	if tail := bytes.TrimRight(raw[8:8+n], " "); tail[len(tail)-1] != '}' {
		t.Errorf("header ends with %q", tail[len(tail)-1])
	}

	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Metadata["scale"] != "1" || len(f.Tensors()) != len(tensors) {
		t.Errorf("metadata %v, %d tensors", f.Metadata, len(f.Tensors()))
	}
	for i, want := range tensors {
		got, ok := f.Tensor(want.Name)
		if !ok || got.DType != want.DType || formatShape(got.Shape) != formatShape(want.Shape) {
			t.Errorf("tensor %+v, want %+v", got, want)
			continue
		}
		if bits := int64(got.DType.Bits()); (8+int64(n)+got.begin)*8%bits != 0 {
			t.Errorf("%s starts at byte %d, not aligned to %d bits", got.Name, got.begin, bits)
		}
		data := make([]byte, got.Bytes())
		if err := f.ReadAt(got, data, 0); err != nil {
			t.Error(err)
		}
		if !bytes.Equal(data, bytes.Repeat([]byte{byte(i + 1)}, len(data))) {
			t.Errorf("%s holds %v", got.Name, data)
		}
	}

	// Nothing at all is a file, too.
	if err := write(path, nil, nil); err != nil {
		t.Fatal(err)
	}
	empty, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	empty.Close()
	onlyFiles(t, dir, "x.safetensors")
}

func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		path    string
		tensors []Tensor
		want    string
	}{
		{"x", []Tensor{{Name: "a", DType: F32}, {Name: "a", DType: F32}}, `tensor "a": name occurs twice`},
		{"x", []Tensor{{Name: "__metadata__", DType: F32}}, `tensor "__metadata__": the name is taken`},
		{"x", []Tensor{{Name: "a", DType: "F99"}}, `tensor "a": dtype "F99" is not known`},
		{"x", []Tensor{{Name: "a", DType: F32, Shape: []int{-1}}}, `tensor "a": shape [-1] has a negative size`},
		{"x", []Tensor{{Name: "a", DType: F32, Shape: []int{1 << 62}}}, `tensor "a": shape [4611686018427387904] of F32 is larger than 2^60 bytes`},
		{"x", []Tensor{{Name: "a", DType: "U8", Shape: []int{1 << 60}}, {Name: "b", DType: "U8", Shape: []int{1}}}, `tensor "b": the file would be larger than 2^60 bytes`},
		{"no/x", nil, `no such file or directory`},
		{".", nil, `is a directory, not a regular file`},
		{"/dev/null", nil, `is a device, not a regular file`},
	} {
		path := c.path
		if !filepath.IsAbs(path) {
			path = filepath.Join(dir, path)
		}
		w, err := Create(path, c.tensors, nil)
		if err == nil {
			w.Close()
			t.Errorf("%s %v was accepted, want %q", c.path, c.tensors, c.want)
			continue
		}
		if want := "safetensors: " + path + ": " + c.want; err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	onlyFiles(t, dir)
}

// TestIncomplete says that a file that was not finished leaves the old one
// alone and no temporary file behind.
func TestIncomplete(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	tensors := []Tensor{{Name: "o", DType: F16, Shape: []int{4}}}
	w, err := Create(path, tensors, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Tensor("p"); err == nil || !strings.Contains(err.Error(), `tensor "p" was not announced`) {
		t.Errorf("tensor p: %v", err)
	}
	s, err := w.Tensor("o")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(make([]byte, 7)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Write(make([]byte, 2)); err == nil || !strings.Contains(err.Error(), `tensor "o": more than its 8 bytes were written`) {
		t.Errorf("two bytes too many: %v", err)
	}
	if err := w.Commit(); err == nil || !strings.Contains(err.Error(), `tensor "o": 7 of 8 bytes were written`) {
		t.Errorf("commit of 7 of 8 bytes: %v", err)
	}
	if err := w.Commit(); err == nil || !strings.Contains(err.Error(), "the writer is closed") {
		t.Errorf("second commit: %v", err)
	}
	if _, err := s.Write(make([]byte, 1)); err == nil {
		t.Error("write after close")
	}

	w, err = Create(path, tensors, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	}
	if old, _ := os.ReadFile(path); string(old) != "old" {
		t.Errorf("the old file holds %q", old)
	}
	onlyFiles(t, dir, "x.safetensors")
}

// TestCreateThroughLink says that the file behind a symbolic link is replaced,
// not the link.
func TestCreateThroughLink(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "x"), filepath.Join(dir, "link")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, link); err != nil {
		t.Skip(err)
	}
	if err := write(link, []Tensor{{Name: "o", DType: F32}}, nil); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	onlyFiles(t, dir, "link", "x")
}
