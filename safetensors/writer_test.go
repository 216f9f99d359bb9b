package safetensors

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/dtype/storage"
)

// write creates path with tensors and fills tensor i with byte i+1.
func write(path string, tensors []Tensor, metadata map[string]string) error {
	w, err := Create(path, tensors, metadata)
	if err != nil {
		return err
	}
	defer w.Close()
	for i, t := range tensors {
		s, err := w.Tensor(t.Name)
		if err != nil {
			return err
		}
		for piece := range slices.Chunk(bytes.Repeat([]byte{byte(i + 1)}, int(t.Bytes())), 5) {
			if _, err := s.Write(piece); err != nil {
				return err
			}
		}
	}
	return w.Commit()
}

func onlyFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	require.Equal(t, want, got)
}

func TestWriteRead(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	tensors := []Tensor{
		{Name: "a", DType: "U8", Shape: []int{3}},
		{Name: "o", DType: F16, Shape: []int{1, 3}},
		{Name: "lse", DType: F32, Shape: []int{1, 1, 3}},
		{Name: "empty", DType: F32, Shape: []int{0}},
		{Name: "scalar", DType: "U8", Shape: []int{}},
		{Name: `quote " and é`, DType: BF16, Shape: []int{1}},
	}
	require.NoError(t, write(path, tensors, map[string]string{"scale": "1"}))
	onlyFiles(t, dir, "x.safetensors")

	raw, err := os.ReadFile(path)
	require.NoError(t, err)
	n := int64(binary.LittleEndian.Uint64(raw))
	require.Zero(t, n%headerAlign)
	require.True(t, bytes.HasSuffix(bytes.TrimRight(raw[8:8+n], " "), []byte("}")))

	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, map[string]string{"scale": "1"}, f.Metadata)
	require.Len(t, f.Tensors(), len(tensors))
	for i, want := range tensors {
		got, ok := f.Tensor(want.Name)
		require.True(t, ok, want.Name)
		require.Equal(t, want, Tensor{Name: got.Name, DType: got.DType, Shape: got.Shape})
		require.Zero(t, (8+n+got.begin)*8%int64(got.DType.Bits()), "%s is not aligned", got.Name)
		data := make([]byte, got.Bytes())
		require.NoError(t, f.ReadAt(got, data, 0))
		require.Equal(t, bytes.Repeat([]byte{byte(i + 1)}, len(data)), data)
	}

	// Nothing at all is a file, too.
	require.NoError(t, write(path, nil, nil))
	empty, err := Open(path)
	require.NoError(t, err)
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
		_, err := Create(path, c.tensors, nil)
		require.EqualError(t, err, "safetensors: "+path+": "+c.want)
	}
	onlyFiles(t, dir)
}

// TestIncomplete says that a file that was not finished leaves the old one
// alone and no temporary file behind.
func TestIncomplete(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.safetensors")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o600))
	tensors := []Tensor{{Name: "o", DType: F16, Shape: []int{4}}}
	w, err := Create(path, tensors, nil)
	require.NoError(t, err)
	_, err = w.Tensor("p")
	require.ErrorContains(t, err, `tensor "p" was not announced`)
	s, err := w.Tensor("o")
	require.NoError(t, err)
	_, err = s.Write(make([]byte, 7))
	require.NoError(t, err)
	_, err = s.Write(make([]byte, 2))
	require.ErrorContains(t, err, `tensor "o": more than its 8 bytes were written`)
	require.ErrorContains(t, w.Commit(), `tensor "o": 7 of 8 bytes were written`)
	require.ErrorContains(t, w.Commit(), "the writer is closed")
	_, err = s.Write(make([]byte, 1))
	require.ErrorContains(t, err, "the writer is closed")

	w, err = Create(path, tensors, nil)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	old, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "old", string(old))
	onlyFiles(t, dir, "x.safetensors")
}

// TestFloat32s: what is written is what is read, in more than one piece, and 16-bit formats are
// converted.
func TestFloat32s(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	n := floatsPiece + 3
	w, err := Create(path, []Tensor{
		{Name: "x", DType: F32, Shape: []int{n}}, {Name: "half", DType: F16, Shape: []int{2}}, {Name: "brain", DType: BF16, Shape: []int{2}},
		{Name: "count", DType: "I32", Shape: []int{1}}, {Name: "none", DType: F32, Shape: []int{0}},
	}, nil)
	require.NoError(t, err)
	defer w.Close()
	want := make([]float32, n)
	for i := range want {
		want[i] = float32(i) + 0.25
	}
	want[1], want[2] = float32(math.Inf(-1)), math.Float32frombits(0x7fc00001)
	for _, wrong := range [][]float32{nil, want[1:], append(want, 0)} {
		require.ErrorContains(t, w.WriteFloat32s("x", wrong), "float32 for tensor \"x\", which is F32 with shape [262147]")
	}
	require.ErrorContains(t, w.WriteFloat32s("half", want[:1]), "which is F16")
	require.NoError(t, w.WriteFloat32s("x", want))
	require.NoError(t, w.WriteFloat32s("none", nil))
	require.Error(t, w.WriteFloat32s("y", want))
	for name, bits := range map[string][]uint16{"half": {0x3c00, 0xc100}, "brain": {0x3f80, 0xc020}, "count": {0, 0}} {
		to, err := w.Tensor(name)
		require.NoError(t, err)
		require.NoError(t, binary.Write(to, binary.LittleEndian, bits))
	}
	require.NoError(t, w.Commit())

	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	read := func(name string) []float32 {
		x, ok := f.Tensor(name)
		require.True(t, ok)
		values, err := f.Float32s(x)
		require.NoError(t, err)
		return values
	}
	got := read("x")
	require.Equal(t, storage.Bytes(dtype.Float32, want), storage.Bytes(dtype.Float32, got))
	require.Equal(t, []float32{1, -2.5}, read("half"))
	require.Equal(t, []float32{1, -2.5}, read("brain"))
	require.Empty(t, read("none"))
	count, _ := f.Tensor("count")
	_, err = f.Float32s(count)
	require.EqualError(t, err, `safetensors: tensor "count" is I32, want F32, F16 or BF16`)
}
