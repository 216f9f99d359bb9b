package vk_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestNewBufferRefuses(t *testing.T) {
	d := vktest.Open(t)
	limit := int64(min(d.Caps().MaxAllocationBytes, d.Caps().MaxBufferBytes, math.MaxInt64-1))
	for _, c := range []struct {
		bytes int64
		want  string
		is    error
	}{
		{0, "must be positive", nil},
		{-1, "must be positive", nil},
		{limit + 1, "more than one allocation may have", vk.ErrUnsupported},
		{math.MaxInt64, "more than one allocation may have", vk.ErrUnsupported},
	} {
		_, err := d.NewBuffer("odd", c.bytes)
		wantError(t, "NewBuffer", err, `"odd"`, c.want)
		if c.is != nil {
			require.ErrorIs(t, err, c.is)
		}
	}
	for _, shape := range [][]int{{0}, {-1}, {2, 0, 2}, {math.MaxInt, math.MaxInt}, {1 << 40, 1 << 40}} {
		_, err := d.NewTensor("x", dtype.Float16, shape...)
		require.Error(t, err, shape)
	}
	_, err := d.NewTensor("x", 9, 1)
	require.Error(t, err)
}

// TestLimits lowers limits of a device: what is beyond them is an error that leaves nothing behind.
func TestLimits(t *testing.T) {
	for name, c := range map[string]struct {
		lower func(t *testing.T, d *vk.Device)
		is    error
		want  string
	}{
		"heap": {func(t *testing.T, d *vk.Device) {
			for i := range d.Caps().Heaps {
				d.Caps().Heaps[i].SizeBytes = 1 << 20
			}
		}, vk.ErrOutOfDeviceMemory, "heap has 1048576 bytes"},
		"memory types": {func(t *testing.T, d *vk.Device) { d.ForgetTypes() }, vk.ErrUnsupported, "no memory type fits"},
		"allocations": {func(t *testing.T, d *vk.Device) {
			d.Caps().MaxAllocations = 3
			for range 3 {
				newBuffer(t, d, "b", 64)
			}
		}, vk.ErrOutOfDeviceMemory, "3 buffers are open"},
	} {
		t.Run(name, func(t *testing.T) {
			d := vktest.Open(t)
			c.lower(t, d)
			before := d.Memory().Bytes
			_, err := d.NewBuffer("b", 1<<20+1)
			require.ErrorIs(t, err, c.is)
			wantError(t, "NewBuffer", err, `buffer "b"`, c.want)
			require.Equal(t, before, d.Memory().Bytes)
		})
	}
	d := vktest.Open(t)
	d.Caps().MaxAllocations = 1 // for a buffer; staging has none
	b := newBuffer(t, d, "b", 64)
	require.ErrorIs(t, b.Upload(background(), 0, make([]byte, 4)), vk.ErrOutOfDeviceMemory)
	for range 3 { // closing makes room again
		b.Close()
		b = newBuffer(t, d, "b", 64)
	}
	d.Caps().MaxAllocations, d.Caps().MaxStorageBufferRange = 4, 60
	c := newCmd(t, d)
	c.Fill(b, 60, 4, 1) // a transfer has no such limit
	axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1}, vk.View(b, dtype.Float32, 1), vk.View(b, dtype.Float32, 1))
	require.ErrorIs(t, c.Err(), vk.ErrUnsupported)
	wantError(t, "Dispatch", c.Err(), `buffer "b" of tensor 0 has 64 bytes, a kernel sees 60`)
	d.Caps().MaxStorageBuffers = 1
	wantError(t, "NewKernel", make1[struct{}](d, axpySPIRV, nil, vk.KernelOptions{}), "2 storage buffers, the device has 1")
}

// TestNotCoherent reads back as from memory that needs an invalidation.
func TestNotCoherent(t *testing.T) {
	d := vktest.Open(t)
	b := newBuffer(t, d, "b", 64)
	for i := range byte(3) {
		require.NoError(t, b.Upload(background(), 0, []byte{i, 2, 3}))
		wantBytes(t, b, []byte{i, 2, 3})
		d.ForgetCoherence()
	}
}

func TestTransferRefuses(t *testing.T) {
	d := vktest.Open(t)
	b := newBuffer(t, d, "ten", 10)
	for _, c := range []struct {
		offset int64
		n      int
	}{{-1, 1}, {0, 11}, {10, 1}, {11, 0}, {math.MaxInt64, 8}, {5, 6}} {
		data := make([]byte, c.n)
		wantError(t, "Upload", b.Upload(background(), c.offset, data), `buffer "ten" has 10 bytes`)
		wantError(t, "Download", b.Download(background(), c.offset, data), `buffer "ten" has 10 bytes`)
	}
	canceled, cancel := context.WithCancel(background())
	cancel()
	require.ErrorIs(t, b.Upload(canceled, 0, make([]byte, 10)), context.Canceled)
	require.ErrorIs(t, b.Download(canceled, 0, make([]byte, 10)), context.Canceled)
	b.Close()
	b.Close()
	wantError(t, "Upload", b.Upload(background(), 0, make([]byte, 1)), "closed")
	wantError(t, "Download", b.Download(background(), 0, make([]byte, 1)), "closed")
	wantError(t, "Download", (&vk.Buffer{}).Download(background(), 0, make([]byte, 1)), "never made")
}
