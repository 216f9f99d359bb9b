package vk_test

import (
	"context"
	_ "embed"
	"math"
	"strings"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// The kernels of the tests; testdata/generate.sh compiles them.
var (
	//go:embed testdata/axpy.spv
	axpySPIRV []byte
	//go:embed testdata/gate.spv
	gateSPIRV []byte
	//go:embed testdata/spin.spv
	spinSPIRV []byte
	//go:embed testdata/shape.spv
	shapeSPIRV []byte
	//go:embed testdata/shape13.spv
	shape13SPIRV []byte
	//go:embed testdata/shared.spv
	sharedSPIRV []byte
)

// sharedSpec is the specialization of shared.comp.
type sharedSpec struct {
	N     uint32 `glsl:"N"`
	Large bool   `glsl:"LARGE"`
}

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

// spinParams is the push-constant block of spin.comp.
type spinParams struct {
	Rounds uint32 `glsl:"rounds"`
}

// shapeSpec is the specialization of shape.comp.
type shapeSpec struct {
	WorkgroupSize uint32 `glsl:"WORKGROUP_SIZE"`
	Signed        int32  `glsl:"SIGNED"`
}

func background() context.Context { return context.Background() }

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
	if err := x.Upload(background(), data); err != nil {
		t.Fatal(err)
	}
	return x
}

func newBuffer(t testing.TB, d *vk.Device, name string, bytes int64) *vk.Buffer {
	t.Helper()
	b, err := d.NewBuffer(name, bytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
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

func submit(t testing.TB, c *vk.Cmd) {
	t.Helper()
	if err := c.Submit(background()); err != nil {
		t.Fatal(err)
	}
}

func download(t testing.TB, x vk.Tensor) []float32 {
	t.Helper()
	got := make([]float32, x.NumElements())
	if err := x.Download(background(), got); err != nil {
		t.Fatal(err)
	}
	return got
}

func wantTensor(t testing.TB, x vk.Tensor, want ...float32) {
	t.Helper()
	got := download(t, x)
	if len(got) != len(want) {
		t.Fatalf("%d elements, want %d", len(got), len(want))
	}
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
			t.Fatalf("element %d is %v, want %v (all: %v)", i, got[i], want[i], got)
		}
	}
}

// wantError checks that err says what is wrong.
func wantError(t testing.TB, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", what, parts)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want it to have %q", what, err, part)
		}
	}
	if strings.Count(err.Error(), "vk: ") > 1 {
		t.Errorf("%s: the prefix is repeated: %v", what, err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: the error has several lines: %v", what, err)
	}
}

// openOwn opens a device whose messages and leaks are the test's business.
func openOwn(t *testing.T, o vk.Options) *vk.Device {
	t.Helper()
	vktest.Open(t) // skips where there is no device
	d, err := vk.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// openValidated is openOwn with the validation layer.
func openValidated(t *testing.T) *vk.Device {
	t.Helper()
	vktest.Require(t, "validation", vk.HaveValidation())
	return openOwn(t, vk.Options{Validate: true})
}
