package vk_test

import (
	"context"
	_ "embed"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

//go:embed testdata/axpy.spv
var axpySPIRV []byte

// axpyParams is the push-constant block of axpy.comp.
type axpyParams struct {
	N       uint32  `glsl:"n"`
	XOffset uint32  `glsl:"x_offset"`
	YOffset uint32  `glsl:"y_offset"`
	A       float32 `glsl:"a"`
}

// axpySpec is the specialization of axpy.comp.
type axpySpec struct {
	Scale  uint32  `glsl:"SCALE"`
	Negate bool    `glsl:"NEGATE"`
	Bias   float32 `glsl:"BIAS"`
}

func axpy(t testing.TB, d *vk.Device) *vk.Kernel[axpyParams] {
	t.Helper()
	k, err := vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// tensor returns a float32 vector that holds data and is closed with the test.
func tensor(t testing.TB, d *vk.Device, name string, data ...float32) vk.Tensor {
	t.Helper()
	x, err := d.NewTensor(name, dtype.Float32, len(data))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(x.Close)
	if err := x.Upload(context.Background(), data); err != nil {
		t.Fatal(err)
	}
	return x
}

func newCmd(t testing.TB, d *vk.Device) *vk.Cmd {
	t.Helper()
	c, err := d.NewCmd(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func wantTensor(t testing.TB, x vk.Tensor, want ...float32) {
	t.Helper()
	got := make([]float32, len(want))
	if err := x.Download(context.Background(), got); err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("element %d is %v, want %v (all: %v)", i, got[i], want[i], got)
		}
	}
}

func TestDispatch(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1, 2, 3), tensor(t, d, "y", 10, 20, 30)
	c := newCmd(t, d)
	timer, err := d.NewTimer(2)
	if err != nil {
		t.Fatal(err)
	}
	defer timer.Close()
	c.Timestamp(timer, 0)
	k.Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 3, A: 2}, x, y)
	c.Barrier()
	k.Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 2, A: 1, XOffset: 1}, x, y)
	c.Timestamp(timer, 1)
	for range 2 {
		if err := c.Submit(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	wantTensor(t, y, 10+2*(2+2), 20+2*(4+3), 30+2*6)
	if e, err := timer.Elapsed(0, 1); err != nil || e <= 0 {
		t.Errorf("Elapsed = %v, %v, want a positive time", e, err)
	}
}
