package filetest

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/safetensors"
)

// TestWrite reads what was written.
func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x")
	Write(t, path, []safetensors.Tensor{F32("a", 2), F32("b", 3), {Name: "c", DType: "I32", Shape: []int{2}}}, map[string]any{"a": []float32{1, -2}, "c": []int32{3, -4}})
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer f.Close()
	for name, want := range map[string][]byte{"a": {0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0}, "b": make([]byte, 12), "c": {3, 0, 0, 0, 0xfc, 0xff, 0xff, 0xff}} {
		x, ok := f.Tensor(name)
		require.True(t, ok)
		got := make([]byte, x.Bytes())
		require.NoError(t, f.ReadAt(x, got, 0))
		require.Equal(t, want, got, name)
	}
}
