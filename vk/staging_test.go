package vk_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
	require.NoError(t, c.Start(background()))
	return c, open
}

// spinning keeps the device busy for a good part of a second.
func spinning(t *testing.T, d *vk.Device) *vk.Cmd {
	t.Helper()
	c := newCmd(t, d)
	spin(t, d, c)
	require.NoError(t, c.Start(background()))
	return c
}

// firstUpload makes the staging memory of a device, which takes time.
func firstUpload(t *testing.T, b *vk.Buffer) {
	t.Helper()
	require.NoError(t, b.Upload(background(), 0, make([]byte, 1)))
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
	b := newBuffer(t, d, "b", 12<<20)
	firstUpload(t, b)
	data := random(rand.New(rand.NewSource(1)), 12<<20)
	want := bytes.Clone(data)
	_, open := busy(t, d)
	require.NoError(t, b.Upload(background(), 0, data))
	clear(data)
	gaps := vk.Tensor{Buffer: b, DType: dtype.Bool, Shape: []int{1000}, Strides: []int{3}}
	require.NoError(t, gaps.UploadRaw(background(), data[:1000]))
	for i := range 1000 {
		want[3*i] = 0
	}
	open()
	wantBytes(t, b, want)
}

// TestUploadOrder: recordings submitted after an upload see the upload, earlier ones do not.
func TestUploadOrder(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	x, y := tensor(t, d, "x", 0), tensor(t, d, "y", 0)
	work := newCmd(t, d)
	spin(t, d, work)
	axpy(t, d).Dispatch(work, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
	for i := range 5 {
		require.NoError(t, x.Upload(background(), []float32{float32(int(1) << i)}))
		require.NoError(t, work.Start(background()))
		require.NoError(t, x.Upload(background(), []float32{1000}))
	}
	wantTensor(t, y, 1+2+4+8+16)
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
			sum := 0
			for i := range sizes {
				sizes[i] = max(sizes[i], 1)
				sum += sizes[i]
			}
			b := newBuffer(t, d, "b", int64(sum))
			want := random(rand.New(rand.NewSource(2)), sum)
			spinning(t, d)
			at := 0
			for _, n := range sizes {
				require.NoError(t, b.Upload(background(), int64(at), want[at:at+n]))
				at += n
			}
			wantBytes(t, b, want)
		})
	}
}

// TestUploadRandom: uploads of any size to any place, one after the other, are in order, and pieces
// come back from odd offsets, smaller and larger than staging.
func TestUploadRandom(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	rng := rand.New(rand.NewSource(3))
	const size = 35 << 20 // two staging buffers and a part
	b := newBuffer(t, d, "b", size)
	want := random(rng, size)
	require.NoError(t, b.Upload(background(), 0, want))
	for _, most := range []int{0, 1, 3, 4096, 16<<20 - 1, 16 << 20, 16<<20 + 1} {
		for i := range 20 {
			n := most
			if i > 0 {
				n = 1 + rng.Intn(1<<rng.Intn(23))
			}
			at := rng.Intn(size - n)
			rng.Read(want[at : at+n])
			require.NoError(t, b.Upload(background(), int64(at), want[at:at+n]))
		}
		at, part := rng.Intn(size-most), make([]byte, most)
		require.NoError(t, b.Download(background(), int64(at), part))
		require.True(t, bytes.Equal(want[at:at+most], part), "%d bytes at %d", most, at)
	}
	wantBytes(t, b, want)
}

// TestUploadBesideDownload: an upload does not wait for a download of another goroutine, and is
// behind it if that began first.
func TestUploadBesideDownload(t *testing.T) {
	d := vktest.Open(t)
	b := newBuffer(t, d, "b", 1)
	firstUpload(t, b)
	wantBytes(t, b, []byte{0}) // makes memory
	_, open := busy(t, d)
	got, done := []byte{9}, make(chan error, 1)
	submitted := d.Submitted()
	go func() { done <- b.Download(background(), 0, got) }()
	for d.Submitted() == submitted {
		time.Sleep(time.Millisecond / 10)
	}
	require.NoError(t, b.Upload(background(), 0, []byte{1}))
	open()
	require.NoError(t, <-done)
	require.Equal(t, []byte{0}, got)
	wantBytes(t, b, []byte{1})
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
	b := newBuffer(t, d, "b", 4)
	c, open := busy(t, d)
	firstUpload(t, b)
	lost.Store(true)
	firstUpload(t, b)
	require.ErrorIs(t, b.Download(background(), 0, make([]byte, 1)), vk.ErrDeviceLost)
	var err error
	for i := 0; err == nil && i < 100; i++ { // until there is no room
		err = b.Upload(background(), 0, []byte{1})
	}
	require.ErrorIs(t, err, vk.ErrDeviceLost)
	open()
	b.Close()
	c.Close()
	require.NoError(t, d.Close())
}

// TestUploadCancel: an upload that waits for room gives up with its context; later ones work.
func TestUploadCancel(t *testing.T) {
	d := vktest.Open(t)
	b := newBuffer(t, d, "b", 20<<20)
	_, open := busy(t, d)
	soon, cancel := context.WithTimeout(background(), 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.Upload(soon, 0, make([]byte, 20<<20)), context.DeadlineExceeded)
	open()
	want := random(rand.New(rand.NewSource(4)), 20<<20)
	require.NoError(t, b.Upload(background(), 0, want))
	wantBytes(t, b, want)
}

// TestDownloadCancel: a download that waits for the device, or for another copy, gives up with its
// context. It leaves a copy on its way, for which the next waits.
func TestDownloadCancel(t *testing.T) {
	d := vktest.Open(t)
	b := newBuffer(t, d, "b", 4)
	want, got := []byte{1, 2, 3, 4}, make([]byte, 4)
	require.NoError(t, b.Upload(background(), 0, want))
	wantBytes(t, b, want) // makes memory
	_, open := busy(t, d)
	soon := func() {
		ctx, cancel := context.WithTimeout(background(), 5*time.Millisecond)
		defer cancel()
		require.ErrorIs(t, b.Download(ctx, 0, make([]byte, 4)), context.DeadlineExceeded)
	}
	soon()
	first := make(chan error)
	go func() { first <- b.Download(background(), 0, got) }() // as long as the device is busy
	soon()
	open()
	require.NoError(t, <-first)
	require.Equal(t, want, got)
	wantBytes(t, b, want)
}

// TestUploadClose: a buffer that is closed behind an upload lives until the copy has finished. All
// buffers of a device that is closed do so.
func TestUploadClose(t *testing.T) {
	vktest.Sequential(t)
	d := openChecked(t, vk.Options{})
	first := newBuffer(t, d, "first", 4)
	firstUpload(t, first)
	first.Close()
	c, open := busy(t, d)
	for range 3 {
		b := newBuffer(t, d, "b", 1<<20)
		require.NoError(t, b.Upload(background(), 0, make([]byte, 1<<20)))
		b.Close()
	}
	for _, m := range d.Memory().Buffers {
		require.True(t, m.Name != "b" || m.Buffers == 3, "%d buffers are left of 3", m.Buffers)
	}
	open()
	c.Close()
	require.NoError(t, d.Close()) // with all of them on their way
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
	b := newBuffer(t, d, "b", 4)
	firstUpload(t, b)
	c, openNow := busy(t, d)
	open = openNow
	require.NoError(t, b.Upload(background(), 0, make([]byte, 4)))
	d.Caps().MaxAllocations = 3 // b, the buffer of the gate, and staging
	_, err := d.NewBuffer("fourth", 4)
	require.ErrorIs(t, err, vk.ErrOutOfDeviceMemory)
	b.Close()
	b = must(d.NewBuffer("again", 4))
	b.Close()
	c.Close()
	require.NoError(t, d.Close())
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
	z := newCmd(t, d)
	z.Zeros("z", 12<<20)
	require.ErrorIs(t, z.Err(), vk.ErrOutOfHostMemory)
	open()
	z.Close()
	c.Close()
	require.NoError(t, d.Close())
}
