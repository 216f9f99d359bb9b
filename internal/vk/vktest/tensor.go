package vktest

import (
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// Tensor makes a tensor, which is closed when the test ends. What it holds is undefined.
func Tensor(t testing.TB, d *vk.Device, format dtype.DType, shape ...int) vk.Tensor {
	t.Helper()
	x, err := d.NewTensor("x", format, shape...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	return x
}

// Values is Tensor with values, all of which are 0 if there are none.
func Values[F float32 | float64](t testing.TB, d *vk.Device, format dtype.DType, values []F, shape ...int) vk.Tensor {
	t.Helper()
	x := Tensor(t, d, format, shape...)
	if values == nil {
		if err := x.Zero(t.Context()); err != nil {
			t.Fatal(err)
		}
		return x
	}
	narrow := make([]float32, len(values))
	for i, v := range values {
		narrow[i] = float32(v)
	}
	if err := x.Upload(t.Context(), narrow); err != nil {
		t.Fatal(err)
	}
	return x
}
