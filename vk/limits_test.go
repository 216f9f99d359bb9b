package vk

import (
	"context"
	"errors"
	"strings"
	"testing"
)

// openForLimits opens a device whose limits the test lowers.
func openForLimits(t *testing.T) *Device {
	t.Helper()
	d, err := Open(Options{Validate: HaveValidation() == nil})
	if errors.Is(err, ErrNoLoader) || errors.Is(err, ErrNoDevice) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestAllocationLimit(t *testing.T) {
	d := openForLimits(t)
	d.caps.MaxAllocations = 3
	var list []*Buffer
	for range 3 {
		b, err := d.NewBuffer("b", 64)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	_, err := d.NewBuffer("fourth", 64)
	if !errors.Is(err, ErrOutOfDeviceMemory) || !strings.Contains(err.Error(), `buffer "fourth"`) || !strings.Contains(err.Error(), "3 buffers are open") {
		t.Errorf("fourth buffer: %v", err)
	}
	if err := list[0].Upload(context.Background(), 0, make([]byte, 4)); !errors.Is(err, ErrOutOfDeviceMemory) {
		t.Errorf("staging: %v, want ErrOutOfDeviceMemory", err)
	}
	list[0].Close()
	b, err := d.NewBuffer("again", 64)
	if err != nil {
		t.Errorf("after Close: %v", err)
	}
	b.Close()
	for _, b := range list[1:] {
		b.Close()
	}
	if n := d.numAllocs.Load(); n != 0 {
		t.Errorf("%d allocations are counted after all were freed", n)
	}
}

func TestHeapLimit(t *testing.T) {
	d := openForLimits(t)
	for i := range d.caps.Heaps {
		d.caps.Heaps[i].SizeBytes = 1 << 20
	}
	_, err := d.NewBuffer("b", 1<<20+1)
	if !errors.Is(err, ErrOutOfDeviceMemory) || !strings.Contains(err.Error(), "heap has 1048576 bytes") {
		t.Errorf("NewBuffer = %v", err)
	}
	if n := d.numAllocs.Load(); n != 0 {
		t.Errorf("%d allocations are counted after a failure", n)
	}
}

func TestMemoryTypeMissing(t *testing.T) {
	d := openForLimits(t)
	d.types = nil
	if _, err := d.NewBuffer("b", 64); !errors.Is(err, ErrUnsupported) {
		t.Errorf("NewBuffer = %v, want ErrUnsupported", err)
	}
}

func TestStorageBufferLimit(t *testing.T) {
	d := openForLimits(t)
	d.caps.MaxStorageBuffers = 1
	_, err := NewKernel[struct{}](d, "k", axpyModule, nil, KernelOptions{})
	if !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "2 storage buffers, the device has 1") {
		t.Errorf("NewKernel = %v", err)
	}
}

// TestNotCoherent reads back as from memory that needs an invalidation.
func TestNotCoherent(t *testing.T) {
	d := openForLimits(t)
	b, err := d.NewBuffer("b", 64)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	for i := range byte(3) {
		if err := b.Upload(context.Background(), 0, []byte{i, 2, 3}); err != nil {
			t.Fatal(err)
		}
		d.staging.down.flags &^= hostCoherent
		got := make([]byte, 3)
		if err := b.Download(context.Background(), 0, got); err != nil || got[0] != i {
			t.Errorf("Download = %v, %v, want %d first", got, err, i)
		}
	}
}
