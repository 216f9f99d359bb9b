package safetensors

import (
	"encoding/binary"
	"math"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

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
	for name, bits := range map[string][]uint16{"half": {0x3c00, 0xc100}, "brain": {0x3f80, 0xc020}} {
		to, err := w.Tensor(name)
		require.NoError(t, err)
		require.NoError(t, binary.Write(to, binary.LittleEndian, bits))
	}
	to, err := w.Tensor("count")
	require.NoError(t, err)
	_, err = to.Write(make([]byte, 4))
	require.NoError(t, err)
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
	require.Len(t, got, n)
	for i := range want {
		require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), i)
	}
	require.Equal(t, []float32{1, -2.5}, read("half"))
	require.Equal(t, []float32{1, -2.5}, read("brain"))
	require.Empty(t, read("none"))
	count, _ := f.Tensor("count")
	_, err = f.Float32s(count)
	require.EqualError(t, err, `safetensors: tensor "count" is I32, want F32, F16 or BF16`)
}
