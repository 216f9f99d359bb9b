// Package filetest makes files of tensors for tests.
package filetest

import (
	"encoding/binary"
	"testing"

	"github.com/flashvk/flashvk/safetensors"
)

// Write makes a file of tensors. Their data, by name, are slices that package binary writes; zeros where there are none.
func Write[D any](t testing.TB, path string, tensors []safetensors.Tensor, data map[string]D) {
	t.Helper()
	w, err := safetensors.Create(path, tensors, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, x := range tensors {
		to, err := w.Tensor(x.Name)
		if err != nil {
			t.Fatal(err)
		}
		var values any = make([]byte, x.Bytes())
		if v, ok := data[x.Name]; ok {
			values = v
		}
		if err := binary.Write(to, binary.LittleEndian, values); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

// F32 is a tensor of float32.
func F32(name string, shape ...int) safetensors.Tensor {
	return safetensors.Tensor{Name: name, DType: safetensors.F32, Shape: shape}
}
