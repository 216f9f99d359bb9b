package vk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// busy keeps the device busy until open is called: what returns before that does not wait for it.
func busy(t *testing.T, d *vk.Device) (c *vk.Cmd, open func()) {
	t.Helper()
	c = newCmd(t, d)
	_, open = c.AwaitHost(gateSPIRV)
	t.Cleanup(open)
	if err := c.Start(background()); err != nil {
		t.Fatal(err)
	}
	return c, open
}

// spinning keeps the device busy for a good part of a second.
func spinning(t *testing.T, d *vk.Device) *vk.Cmd {
	t.Helper()
	c := newCmd(t, d)
	spin(t, d, c)
	if err := c.Start(background()); err != nil {
		t.Fatal(err)
	}
	return c
}

// firstUpload makes the staging memory of a device, which takes time.
func firstUpload(t *testing.T, b *vk.Buffer) {
	t.Helper()
	if err := b.Upload(background(), 0, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

func random(rng *rand.Rand, n int) []byte {
	x := make([]byte, n)
	rng.Read(x)
	return x
}

// TestUploadBeside: uploads return while the device is busy, as long as there is room for them, and
// the caller may change the data then.
func TestUploadBeside(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	rng := rand.New(rand.NewSource(1))
	b := newBuffer(t, d, "b", 12<<20)
	firstUpload(t, b)
	data := random(rng, 12<<20)
	want := bytes.Clone(data)
	_, open := busy(t, d)
	if err := b.Upload(background(), 0, data); err != nil {
		t.Fatal(err)
	}
	clear(data)
	gaps := vk.Tensor{Buffer: b, DType: dtype.Bool, Shape: []int{1000}, Strides: []int{3}}
	if err := gaps.UploadRaw(background(), data[:1000]); err != nil {
		t.Fatal(err)
	}
	for i := range 1000 {
		want[3*i] = 0
	}
	open()
	got := make([]byte, len(want))
	if err := b.Download(background(), 0, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("Download: %v, or other bytes", err)
	}
}

// TestUploadOrder: an upload is seen by what is submitted after it, and not by what was before.
func TestUploadOrder(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	x, y := tensor(t, d, "x", 0), tensor(t, d, "y", 0)
	work := newCmd(t, d)
	spin(t, d, work)
	axpy(t, d).Dispatch(work, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
	want := float32(0)
	for i := range 5 {
		value := float32(int(1) << i)
		if err := x.Upload(background(), []float32{value}); err != nil {
			t.Fatal(err)
		}
		if err := work.Start(background()); err != nil {
			t.Fatal(err)
		}
		if err := x.Upload(background(), []float32{1000}); err != nil {
			t.Fatal(err)
		}
		want += value
	}
	wantTensor(t, y, want)
	wantTensor(t, x, 1000)
}

// TestUploadWraps: uploads behind a busy device that need more than the staging memory, or more
// copies than there may be, wait for those before. What they have written there stays until then.
func TestUploadWraps(t *testing.T) {
	vktest.Sequential(t)
	const mib = 1 << 20
	for _, sizes := range [][]int{
		{40 * mib}, // larger than the ring
		{5*mib + 1, 5*mib + 1, 5*mib + 1, 5*mib + 1}, // the last begins at the start again
		{15 * mib, 3, 2 * mib, 1},
		make([]int, 50), // of one byte: more than recorders
	} {
		t.Run(fmt.Sprint(len(sizes), sizes[0]), func(t *testing.T) {
			d := vktest.Open(t)
			rng := rand.New(rand.NewSource(2))
			sum := 0
			for i := range sizes {
				sizes[i] = max(sizes[i], 1)
				sum += sizes[i]
			}
			b := newBuffer(t, d, "b", int64(sum))
			want := random(rng, sum)
			spinning(t, d)
			at := 0
			for _, n := range sizes {
				if err := b.Upload(background(), int64(at), want[at:at+n]); err != nil {
					t.Fatal(err)
				}
				at += n
			}
			got := make([]byte, sum)
			if err := b.Download(background(), 0, got); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				i := 0
				for got[i] == want[i] {
					i++
				}
				t.Errorf("byte %d came back changed", i)
			}
		})
	}
}

// TestUploadRandom: uploads of any size to any place, one after the other, are in order.
func TestUploadRandom(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	rng := rand.New(rand.NewSource(3))
	const size = 9 << 20
	b := newBuffer(t, d, "b", size)
	want, got := random(rng, size), make([]byte, size)
	if err := b.Upload(background(), 0, want); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		for range 30 {
			n := 1 + rng.Intn(1<<rng.Intn(24))
			n = min(n, size)
			at := rng.Intn(size - n + 1)
			rng.Read(want[at : at+n])
			if err := b.Upload(background(), int64(at), want[at:at+n]); err != nil {
				t.Fatal(err)
			}
		}
		if err := b.Download(background(), 0, got); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("Download: %v, or other bytes", err)
		}
	}
}

// TestUploadBesideDownload: an upload does not wait for a download of another goroutine, and is
// behind it if that began first.
func TestUploadBesideDownload(t *testing.T) {
	d := vktest.Open(t)
	b := newBuffer(t, d, "b", 1)
	firstUpload(t, b)
	got := []byte{9}
	if err := b.Download(background(), 0, got); err != nil { // makes memory
		t.Fatal(err)
	}
	_, open := busy(t, d)
	got[0] = 9
	done := make(chan error, 1)
	submitted := d.Submitted()
	go func() { done <- b.Download(background(), 0, got) }()
	for d.Submitted() == submitted {
		time.Sleep(time.Millisecond / 10)
	}
	if err := b.Upload(background(), 0, []byte{1}); err != nil {
		t.Fatal(err)
	}
	open()
	if err := <-done; err != nil || got[0] != 0 {
		t.Errorf("Download = %v, %v, want 0", got, err)
	}
	if err := b.Download(background(), 0, got); err != nil || got[0] != 1 {
		t.Errorf("Download after Upload = %v, %v, want 1", got, err)
	}
}

// TestUploadLost: an upload that was taken by a device that is lost then returns no error; the next
// call that waits does, and Close ends.
func TestUploadLost(t *testing.T) {
	vktest.Sequential(t)
	var lost atomic.Bool
	d := openOwn(t, vk.Options{Fault: func(call string) vk.Result {
		if lost.Load() && call == "vkWaitSemaphores" {
			return vk.ErrDeviceLost.(vk.Result)
		}
		return 0
	}})
	other := newBuffer(t, d, "other", 4)
	c, open := busy(t, d)
	if err := other.Upload(background(), 0, []byte{1}); err != nil {
		t.Fatal(err)
	}
	lost.Store(true)
	if err := other.Upload(background(), 0, []byte{1}); err != nil {
		t.Errorf("Upload with room = %v", err)
	}
	if err := other.Download(background(), 0, make([]byte, 1)); !errors.Is(err, vk.ErrDeviceLost) {
		t.Errorf("Download = %v, want ErrDeviceLost", err)
	}
	for i := 0; ; i++ { // until there is no room
		if err := other.Upload(background(), 0, []byte{1}); errors.Is(err, vk.ErrDeviceLost) {
			break
		} else if err != nil || i > 100 {
			t.Fatalf("Upload without room = %v", err)
		}
	}
	open()
	other.Close()
	c.Close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestUploadCancel: an upload that waits for room gives up with its context; later ones work.
func TestUploadCancel(t *testing.T) {
	d := vktest.Open(t)
	b := newBuffer(t, d, "b", 20<<20)
	_, open := busy(t, d)
	soon, cancel := context.WithTimeout(background(), 20*time.Millisecond)
	defer cancel()
	if err := b.Upload(soon, 0, make([]byte, 20<<20)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Upload = %v, want DeadlineExceeded", err)
	}
	open()
	want := random(rand.New(rand.NewSource(4)), 20<<20)
	if err := b.Upload(background(), 0, want); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(want))
	if err := b.Download(background(), 0, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("Download: %v, or other bytes", err)
	}
}

// TestDownloadCancel: a download that gave up with its context leaves a copy on its way, for which
// the next waits.
func TestDownloadCancel(t *testing.T) {
	d := vktest.Open(t)
	b := newBuffer(t, d, "b", 4)
	want, got := []byte{1, 2, 3, 4}, make([]byte, 4)
	if err := b.Upload(background(), 0, want); err != nil {
		t.Fatal(err)
	}
	if err := b.Download(background(), 0, got); err != nil { // makes memory
		t.Fatal(err)
	}
	_, open := busy(t, d)
	for range 2 {
		soon, cancel := context.WithTimeout(background(), 5*time.Millisecond)
		if err := b.Download(soon, 0, make([]byte, 4)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Download = %v, want DeadlineExceeded", err)
		}
		cancel()
	}
	open()
	clear(got)
	if err := b.Download(background(), 0, got); err != nil || !bytes.Equal(got, want) {
		t.Errorf("Download = %v, %v, want %v", got, err, want)
	}
}

// TestUploadClose: a buffer that is closed behind an upload lives until the copy has finished; so
// do those of a device that is closed.
func TestUploadClose(t *testing.T) {
	vktest.Sequential(t)
	d := openChecked(t, vk.Options{})
	first := newBuffer(t, d, "first", 4)
	firstUpload(t, first)
	first.Close()
	c, open := busy(t, d)
	for range 3 {
		b, err := d.NewBuffer("b", 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Upload(background(), 0, make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		b.Close()
	}
	for _, m := range d.Memory().Buffers {
		if m.Name == "b" && m.Buffers != 3 {
			t.Errorf("%d buffers are left of 3 that copies write to", m.Buffers)
		}
	}
	open()
	c.Close()
	if err := d.Close(); err != nil { // with all of them on their way
		t.Error(err)
	}
}

// TestUploadMemory: memory that a closed buffer has until a copy is done is waited for.
func TestUploadMemory(t *testing.T) {
	vktest.Sequential(t)
	var open func()
	d := openChecked(t, vk.Options{Fault: func(call string) vk.Result {
		if call == "vkWaitSemaphores" && open != nil {
			open()
		}
		return 0
	}})
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}()
	b, err := d.NewBuffer("b", 4)
	if err != nil {
		t.Fatal(err)
	}
	firstUpload(t, b)
	c, openNow := busy(t, d)
	defer c.Close()
	open = openNow
	if err := b.Upload(background(), 0, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	d.Caps().MaxAllocations = 3 // b, the one of the gate, and staging
	if b2, err := d.NewBuffer("fourth", 4); !errors.Is(err, vk.ErrOutOfDeviceMemory) {
		b2.Close()
		t.Errorf("a fourth buffer: %v", err)
	}
	b.Close()
	b, err = d.NewBuffer("again", 4)
	if err != nil {
		t.Errorf("after Close: %v", err)
	}
	b.Close()
}

// TestUploadFails: an upload that fails half way leaves a copy on its way; memory that is then given
// up lives as long.
func TestUploadFails(t *testing.T) {
	vktest.Sequential(t)
	var submits, failing atomic.Int64
	d := openChecked(t, vk.Options{Fault: func(call string) vk.Result {
		if call == "vkQueueSubmit" && submits.Add(1) == failing.Load() {
			return vk.ErrOutOfHostMemory.(vk.Result)
		}
		return 0
	}})
	c, open := busy(t, d)
	failing.Store(submits.Load() + 2)
	z, err := d.NewCmd("zeros")
	if err != nil {
		t.Fatal(err)
	}
	z.Zeros("z", 12<<20)
	if !errors.Is(z.Err(), vk.ErrOutOfHostMemory) {
		t.Errorf("Zeros: %v", z.Err())
	}
	open()
	z.Close()
	c.Close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestUploadTogether uploads and downloads from several goroutines; run it with -race.
func TestUploadTogether(t *testing.T) {
	d := vktest.Open(t)
	c := spinning(t, d)
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewSource(int64(w)))
			for range 6 {
				n := 1 + rng.Intn(1<<(10+rng.Intn(13)))
				b, err := d.NewBuffer("b", int64(n))
				if err != nil {
					t.Error(err)
					return
				}
				want, got := random(rng, n), make([]byte, n)
				if err := b.Upload(background(), 0, want); err != nil {
					t.Error(err)
				}
				if w%2 == 0 {
					if err := b.Download(background(), 0, got); err != nil || !bytes.Equal(got, want) {
						t.Errorf("Download: %v, or other bytes", err)
					}
				}
				b.Close()
			}
		}()
	}
	wg.Wait()
	if err := c.Wait(background()); err != nil {
		t.Error(err)
	}
}

// openChecked is openOwn, with the validation layer if there is one.
func openChecked(t *testing.T, o vk.Options) *vk.Device {
	t.Helper()
	o.Validate = vk.HaveValidation() == nil
	return openOwn(t, o)
}
