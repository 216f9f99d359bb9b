package vk_test

import (
	"bytes"
	"context"
	_ "embed"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
	k := must(vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{}))
	return k
}

// tensor returns a float32 vector that holds data and is closed with the test.
func tensor(t testing.TB, d *vk.Device, name string, data ...float32) vk.Tensor {
	t.Helper()
	x := must(d.NewTensor(name, dtype.Float32, len(data)))
	t.Cleanup(x.Close)
	require.NoError(t, x.Upload(background(), data))
	return x
}

func newBuffer(t testing.TB, d *vk.Device, name string, bytes int64) *vk.Buffer {
	t.Helper()
	b := must(d.NewBuffer(name, bytes))
	t.Cleanup(b.Close)
	return b
}

func newCmd(t testing.TB, d *vk.Device) *vk.Cmd {
	t.Helper()
	c := must(d.NewCmd(t.Name()))
	t.Cleanup(c.Close)
	return c
}

func submit(t testing.TB, c *vk.Cmd) {
	t.Helper()
	require.NoError(t, c.Submit(background()))
}

func download(t testing.TB, x vk.Tensor) []float32 {
	t.Helper()
	got := make([]float32, x.NumElements())
	require.NoError(t, x.Download(background(), got))
	return got
}

func wantTensor(t testing.TB, x vk.Tensor, want ...float32) {
	t.Helper()
	got := download(t, x)
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, math.Float32bits(want[i]), math.Float32bits(got[i]), "element %d of %v", i, got)
	}
}

// wantBytes wants b to begin with these bytes.
func wantBytes(t testing.TB, b *vk.Buffer, want []byte) {
	t.Helper()
	got := make([]byte, len(want))
	require.NoError(t, b.Download(background(), 0, got))
	require.True(t, bytes.Equal(want, got), "other bytes")
}

func wantError(t testing.TB, what string, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", what, parts)
		return
	}
	for _, part := range parts {
		require.ErrorContains(t, err, part, what)
	}
	if strings.Count(err.Error(), "vk: ") > 1 {
		t.Errorf("%s: the prefix is repeated: %v", what, err)
	}
	require.False(t, strings.Contains(err.Error(), "\n"))
}

// openOwn opens a device whose messages and leaks are the test's business.
func openOwn(t *testing.T, o vk.Options) *vk.Device {
	t.Helper()
	vktest.Open(t) // skips where there is no device
	d := must(vk.Open(o))
	return d
}

// openChecked is openOwn, with the validation layer if there is one.
func openChecked(t *testing.T, o vk.Options) *vk.Device {
	t.Helper()
	o.Validate = vk.HaveValidation() == nil
	return openOwn(t, o)
}

// openValidated is openOwn with the validation layer.
func openValidated(t *testing.T) *vk.Device {
	t.Helper()
	vktest.Require(t, "validation", vk.HaveValidation())
	return openOwn(t, vk.Options{Validate: true})
}
