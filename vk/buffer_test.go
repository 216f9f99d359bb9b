package vk_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand"
	"testing"

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
		b, err := d.NewBuffer("odd", c.bytes)
		if b != nil || c.is != nil && !errors.Is(err, c.is) {
			t.Errorf("NewBuffer(%d) = %v, %v, want %v", c.bytes, b, err, c.is)
		}
		wantError(t, "NewBuffer", err, `"odd"`, c.want)
	}
	if limit < 5<<30 {
		_, err := d.NewBuffer("5 GiB", 5<<30)
		wantError(t, "NewBuffer", err, "5368709120 bytes", "unsupported on this device")
	}
}

// TestOutOfMemory takes memory until there is none, where that does not hurt
// the machine: a CPU device would take the host's.
func TestOutOfMemory(t *testing.T) {
	d := vktest.Open(t)
	if d.Caps().Type == vk.CPU || testing.Short() {
		t.Skip("takes all memory")
	}
	var list []*vk.Buffer
	defer func() {
		for _, b := range list {
			b.Close()
		}
	}()
	for {
		b, err := d.NewBuffer("hoard", int64(d.Caps().MaxAllocationBytes/2))
		if err != nil {
			if !errors.Is(err, vk.ErrOutOfDeviceMemory) {
				t.Errorf("%v, want ErrOutOfDeviceMemory", err)
			}
			break
		}
		list = append(list, b)
	}
	// Closing one makes room again.
	if len(list) > 0 {
		list[0].Close()
		b, err := d.NewBuffer("after", int64(d.Caps().MaxAllocationBytes/2))
		if err != nil {
			t.Errorf("after Close: %v", err)
		}
		b.Close()
	}
}

// TestTransfer copies pieces at odd offsets, smaller and larger than staging.
func TestTransfer(t *testing.T) {
	d := vktest.Open(t)
	const size = 35 << 20 // two staging buffers and a part
	b := newBuffer(t, d, "b", size)
	want := make([]byte, size)
	rng := rand.New(rand.NewSource(1))
	rng.Read(want)
	if err := b.Upload(background(), 0, want); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 3, 4096, 16<<20 - 1, 16 << 20, 16<<20 + 1} {
		at := rng.Intn(size - n)
		rng.Read(want[at : at+n])
		if err := b.Upload(background(), int64(at), want[at:at+n]); err != nil {
			t.Fatal(err)
		}
		at = rng.Intn(size - n)
		part := make([]byte, n)
		if err := b.Download(background(), int64(at), part); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(part, want[at:at+n]) {
			t.Errorf("%d bytes at %d came back changed", n, at)
		}
	}
	got := make([]byte, size)
	if err := b.Download(background(), 0, got); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("the whole came back changed")
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
	if err := b.Upload(canceled, 0, make([]byte, 10)); !errors.Is(err, context.Canceled) {
		t.Errorf("Upload after cancel: %v", err)
	}
	if err := b.Download(canceled, 0, make([]byte, 10)); !errors.Is(err, context.Canceled) {
		t.Errorf("Download after cancel: %v", err)
	}
	b.Close()
	b.Close()
	wantError(t, "Upload", b.Upload(background(), 0, make([]byte, 1)), "closed")
	wantError(t, "Download", b.Download(background(), 0, make([]byte, 1)), "closed")
	wantError(t, "Download", (&vk.Buffer{}).Download(background(), 0, make([]byte, 1)), "never made")
}
