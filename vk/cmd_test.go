package vk_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestSubmitAgain(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1, 2, 3), tensor(t, d, "y", 10, 20, 30)
	c := newCmd(t, d)
	k.Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 3, A: 2}, x, y)
	c.Barrier()
	k.Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 2, A: 1, XOffset: 1}, x, y)
	for range 3 {
		submit(t, c)
	}
	wantTensor(t, y, 10+3*(2+2), 20+3*(4+3), 30+3*6)

	c.Reset()
	k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: -1}, x, y)
	submit(t, c)
	wantTensor(t, y, 10+3*(2+2)-1, 20+3*(4+3), 30+3*6)
}

// TestSubmissionOrder: submissions see what earlier ones wrote, waited for or
// not, and so do transfers.
func TestSubmissionOrder(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1), tensor(t, d, "y", 0)
	var cmds []*vk.Cmd
	for range 10 {
		c := newCmd(t, d)
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
		cmds = append(cmds, c)
	}
	for _, c := range cmds {
		if err := c.Start(background()); err != nil {
			t.Fatal(err)
		}
	}
	wantTensor(t, y, 10)
	for i := len(cmds) - 1; i >= 0; i-- { // in any order, and twice
		for range 2 {
			if err := cmds[i].Wait(background()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestExplicitBarriers records the caller's barriers between every pair of stages.
func TestExplicitBarriers(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	x, y, z := tensor(t, d, "x", 1, 2), tensor(t, d, "y", 0, 0), tensor(t, d, "z", 0, 0)
	c := newCmd(t, d)
	add := func() { k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, x, y) }
	add()
	c.Barrier()
	c.Forget() // and so there is none but the caller's
	add()      // y = 2x
	c.BarrierToTransfer()
	c.Forget()
	c.Copy(z.Buffer, 0, y.Buffer, 4, 4) // z = y[1], 0
	c.BarrierFromTransfer()
	c.Forget()
	c.Fill(y.Buffer, 4, 4, 0x3f800000) // y = 2, 1
	c.BarrierFromTransfer()
	c.Forget()
	add()
	submit(t, c)
	wantTensor(t, y, 2+1, 1+2)
	wantTensor(t, z, 4, 0)
}

// TestRecordingErrors: the first error is kept, and nothing runs.
func TestRecordingErrors(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1), tensor(t, d, "y", 7)
	closedBuffer := newBuffer(t, d, "closed", 16)
	closedBuffer.Close()
	closedKernel, err := vk.NewKernel[axpyParams](d, "closed", axpySPIRV, nil, vk.KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	closedKernel.Close()
	closedTimer, err := d.NewTimer(1)
	if err != nil {
		t.Fatal(err)
	}
	closedTimer.Close()
	timer, err := d.NewTimer(2)
	if err != nil {
		t.Fatal(err)
	}
	defer timer.Close()
	tooMany := d.Caps().MaxWorkgroupCount[1]
	for _, e := range []struct {
		name   string
		record func(c *vk.Cmd)
		want   string
	}{
		{"too few tensors", func(c *vk.Cmd) { k.Dispatch(c, vk.Groups{}, axpyParams{}, x) }, "takes 2 tensors, got 1"},
		{"too many tensors", func(c *vk.Cmd) { k.Dispatch(c, vk.Groups{}, axpyParams{}, x, y, x) }, "takes 2 tensors, got 3"},
		{"zero tensor", func(c *vk.Cmd) { k.Dispatch(c, vk.Groups{}, axpyParams{}, x, vk.Tensor{}) }, "tensor 1 has no open buffer"},
		{"closed tensor", func(c *vk.Cmd) {
			k.Dispatch(c, vk.Groups{}, axpyParams{}, vk.View(closedBuffer, dtype.Float32, 1), y)
		}, "tensor 0 has no open buffer"},
		{"closed kernel", func(c *vk.Cmd) { closedKernel.Dispatch(c, vk.Groups{}, axpyParams{}, x, y) }, `kernel "closed" is closed`},
		{"groups", func(c *vk.Cmd) { k.Dispatch(c, vk.Groups{Y: tooMany + 1}, axpyParams{}, x, y) }, "workgroups in direction Y"},
		{"fill range", func(c *vk.Cmd) { c.Fill(x.Buffer, 0, 8, 0) }, `buffer "x" has 4 bytes`},
		{"fill alignment", func(c *vk.Cmd) { c.Fill(x.Buffer, 1, 2, 0) }, "not a multiple of 4"},
		{"fill nothing", func(c *vk.Cmd) { c.Fill(x.Buffer, 0, 0, 0) }, "size must be positive"},
		{"fill closed", func(c *vk.Cmd) { c.Fill(closedBuffer, 0, 4, 0) }, "closed"},
		{"fill nil", func(c *vk.Cmd) { c.Fill(nil, 0, 4, 0) }, "never made"},
		{"write range", func(c *vk.Cmd) { c.Write(x.Buffer, 4, make([]byte, 4)) }, `buffer "x" has 4 bytes`},
		{"write alignment", func(c *vk.Cmd) { c.Write(x.Buffer, 0, make([]byte, 2)) }, "not a multiple of 4"},
		{"write nothing", func(c *vk.Cmd) { c.Write(x.Buffer, 0, nil) }, "size must be positive"},
		{"copy from", func(c *vk.Cmd) { c.Copy(x.Buffer, 0, y.Buffer, 1, 4) }, `buffer "y" has 4 bytes`},
		{"copy to", func(c *vk.Cmd) { c.Copy(x.Buffer, -1, y.Buffer, 0, 4) }, `buffer "x" has 4 bytes`},
		{"copy overlap", func(c *vk.Cmd) { c.Copy(x.Buffer, 0, x.Buffer, 1, 3) }, "overlap"},
		{"timestamp index", func(c *vk.Cmd) { c.Timestamp(timer, 2) }, "index 2 is not in 0..1"},
		{"timestamp closed", func(c *vk.Cmd) { c.Timestamp(closedTimer, 0) }, "closed"},
		{"timestamp nil", func(c *vk.Cmd) { c.Timestamp(nil, 0) }, "closed"},
		{"scratch size", func(c *vk.Cmd) { c.Scratch("s", -4) }, "must be positive"},
		{"scratch too large", func(c *vk.Cmd) {
			s := c.Scratch("s", 1<<62) // the buffer that comes back serves to go on
			k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, vk.View(s, dtype.Float32, 1), y)
		}, "more than one allocation may have"},
	} {
		t.Run(e.name, func(t *testing.T) {
			c := newCmd(t, d)
			k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
			e.record(c)
			first := c.Err()
			wantError(t, "Err", first, e.want)
			k.Dispatch(c, vk.Groups{}, axpyParams{}, x) // wrong too, but later
			if err := c.Submit(background()); err != first {
				t.Errorf("Submit = %v, want the first error", err)
			}
			wantTensor(t, y, 7)
			c.Reset()
			if err := c.Submit(background()); err != nil {
				t.Errorf("after Reset: %v", err)
			}
		})
	}
	c := newCmd(t, d)
	k.Dispatch(c, vk.Groups{Y: tooMany + 1}, axpyParams{}, x, y)
	if !errors.Is(c.Err(), vk.ErrUnsupported) {
		t.Errorf("too many workgroups: %v does not wrap ErrUnsupported", c.Err())
	}
}

func TestRecordedAfterSubmit(t *testing.T) {
	d := vktest.Open(t)
	x, y := tensor(t, d, "x", 1), tensor(t, d, "y", 7)
	c := newCmd(t, d)
	submit(t, c) // nothing recorded: fine
	axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
	wantError(t, "Submit", c.Submit(background()), "after Submit, Reset comes first")
	c.Close()
	c.Close()
	wantError(t, "Submit", c.Submit(background()), "after Submit") // the first error stays
	wantError(t, "Wait", c.Wait(background()), "closed")
	fresh := newCmd(t, d)
	fresh.Close()
	axpy(t, d).Dispatch(fresh, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
	wantError(t, "Dispatch", fresh.Err(), "after Close")
}

// TestClosedBeforeSubmit: a recording outlives what it refers to.
func TestClosedBeforeSubmit(t *testing.T) {
	d := vktest.Open(t)
	x, y, z := tensor(t, d, "x", 1), tensor(t, d, "y", 7), tensor(t, d, "z", 7)
	k, err := vk.NewKernel[axpyParams](d, "own", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	byBuffer, byKernel, other := newCmd(t, d), newCmd(t, d), newCmd(t, d)
	axpy(t, d).Dispatch(byBuffer, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
	k.Dispatch(byKernel, vk.Groups{}, axpyParams{N: 1, A: 1}, z, z)
	axpy(t, d).Dispatch(other, vk.Groups{}, axpyParams{N: 1, A: 1}, z, z)
	submit(t, byBuffer)
	submit(t, byKernel)
	x.Close()
	wantError(t, "Submit", byBuffer.Submit(background()), `buffer "x"`, "closed")
	submit(t, byKernel)
	k.Close()
	wantError(t, "Submit", byKernel.Submit(background()), `kernel "own"`, "closed")
	submit(t, other)
	wantError(t, "Submit", byBuffer.Submit(background()), `buffer "x"`) // still
}

func TestManyDispatches(t *testing.T) {
	d := vktest.Open(t)
	x, y := tensor(t, d, "x", 1), tensor(t, d, "y", 0)
	c := newCmd(t, d)
	const n = 200 // more than one descriptor pool holds
	for range 2 {
		for range n {
			axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
			c.Barrier()
		}
		submit(t, c)
		c.Reset()
	}
	wantTensor(t, y, 2*n)
}

func TestStorageRange(t *testing.T) {
	d := vktest.Open(t)
	limit := d.Caps().MaxStorageBufferRange
	if limit >= d.Caps().MaxAllocationBytes {
		t.Skipf("kernels see %d bytes, no buffer is larger", limit)
	}
	b := newBuffer(t, d, "large", int64(limit)+4)
	y := tensor(t, d, "y", 7)
	c := newCmd(t, d)
	axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1}, vk.View(b, dtype.Float32, 1), y)
	wantError(t, "Dispatch", c.Err(), `buffer "large"`, "unsupported")
	if !errors.Is(c.Err(), vk.ErrUnsupported) {
		t.Errorf("%v does not wrap ErrUnsupported", c.Err())
	}
	// The transfer commands have no such limit.
	c.Reset()
	c.Fill(b, int64(limit), 4, 1)
	submit(t, c)
}

// memory returns the buffer whose memory a slice has.
func memory(b *vk.Buffer) *vk.Buffer {
	whole, _, _ := vk.View(b, dtype.Float32, 1).Memory()
	return whole
}

func TestScratch(t *testing.T) {
	d := vktest.Open(t)
	x, y := tensor(t, d, "x", 1, 2), tensor(t, d, "y", 0, 0)
	c := newCmd(t, d)
	record := func() (a, b *vk.Buffer) {
		a, b = c.Scratch("a", 8), c.Scratch("b", 8)
		c.Fill(a, 0, 8, 0)
		axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 3}, x, vk.View(a, dtype.Float32, 2))
		axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, vk.View(a, dtype.Float32, 2), y)
		return a, b
	}
	a, b := record()
	if a == b {
		t.Error("two scratch buffers of one recording are one")
	}
	a.Close() // is the Cmd's: no effect
	submit(t, c)
	wantTensor(t, y, 3, 6)

	c.Reset()
	a2, b2 := record()
	if memory(a2) != memory(a) || memory(b2) != memory(a) {
		t.Error("Reset did not keep the memory")
	}
	submit(t, c)
	wantTensor(t, y, 6, 12)

	// Memory that a recording does not use goes at the next Reset; what
	// another Cmd recorded with it no longer runs.
	other := newCmd(t, d)
	other.Fill(a2, 0, 4, 0)
	other.Fill(b2, 0, 4, 0)
	submit(t, other)
	c.Reset()
	c.Scratch("large", 1<<20)
	c.Reset()
	wantError(t, "Submit", other.Submit(background()), "scratch buffer", "closed")
	wantError(t, "Upload", a2.Upload(background(), 0, make([]byte, 4)), "closed")

	s := c.Scratch("last", 64)
	other.Reset()
	other.Fill(s, 0, 4, 0)
	submit(t, other)
	c.Close()
	wantError(t, "Submit", other.Submit(background()), "scratch buffer", "closed")
}

// spin records work that keeps the device busy for a good part of a second.
func spin(t *testing.T, d *vk.Device, c *vk.Cmd) *vk.Buffer {
	t.Helper()
	k, err := vk.CachedKernel[spinParams](d, "spin", spinSPIRV, nil, vk.KernelOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b := newBuffer(t, d, "busy", 4)
	k.Dispatch(c, vk.Groups{}, spinParams{Rounds: 50_000_000}, vk.View(b, dtype.Float32, 1))
	return b
}

func TestCancel(t *testing.T) {
	d := vktest.Open(t)
	c := newCmd(t, d)
	b := spin(t, d, c)

	canceled, cancel := context.WithCancel(background())
	cancel()
	if err := c.Submit(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("Submit after cancel: %v", err)
	}
	if err := b.Upload(background(), 0, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 4)
	if err := b.Download(background(), 0, got); err != nil || got[0] != 0 {
		t.Errorf("a canceled Submit ran: %v, %v", got, err)
	}

	_, open := busy(t, d)
	soon, cancel := context.WithTimeout(background(), 5*time.Millisecond)
	defer cancel()
	if err := c.Start(background()); err != nil {
		t.Fatal(err)
	}
	if err := c.Submit(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Submit = %v, want DeadlineExceeded", err)
	}
	// Everything may be closed or used on while it still runs.
	if err := c.Wait(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait = %v, want DeadlineExceeded", err)
	}
	open()
	if err := b.Download(background(), 0, got); err != nil || got[0] == 0 {
		t.Errorf("Download after the canceled wait: %v, %v, want what the kernel wrote", got, err)
	}
	if err := c.Wait(background()); err != nil {
		t.Error(err)
	}
}

// TestCancelTransfer: a copy that waits for the device, or for another copy,
// gives up with its context.
func TestCancelTransfer(t *testing.T) {
	d := vktest.Open(t)
	c := newCmd(t, d)
	b := spin(t, d, c)
	if err := b.Upload(background(), 0, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	_, open := busy(t, d)
	if err := c.Start(background()); err != nil {
		t.Fatal(err)
	}
	first := make(chan error)
	got := make([]byte, 4)
	go func() { first <- b.Download(background(), 0, got) }() // takes as long as the kernel
	for range 2 {
		soon, cancel := context.WithTimeout(background(), 5*time.Millisecond)
		if err := b.Download(soon, 0, make([]byte, 4)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Download = %v, want DeadlineExceeded", err)
		}
		cancel()
	}
	open()
	if err := <-first; err != nil || got[0] == 0 {
		t.Errorf("the patient Download: %v, %v", got, err)
	}
}

// TestCloseInFlight closes everything while the device works on it.
func TestCloseInFlight(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	c := newCmd(t, d)
	b := spin(t, d, c)
	timer, err := d.NewTimer(1)
	if err != nil {
		t.Fatal(err)
	}
	s := c.Scratch("s", 64)
	c.Fill(s, 0, 64, 0)
	c.Timestamp(timer, 0)
	_, open := busy(t, d)
	if err := c.Start(background()); err != nil {
		t.Fatal(err)
	}
	b.Close()
	timer.Close()
	c.Close()
	open()
	// The device goes on, and Device.Close, in the cleanup, waits.
	x, y := tensor(t, d, "x", 1), tensor(t, d, "y", 7)
	c = newCmd(t, d)
	axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
	submit(t, c)
	wantTensor(t, y, 8)
	if c.Start(background()) != nil {
		t.Fatal("Start")
	}
}

// TestResetInFlight: Reset waits for what runs.
func TestResetInFlight(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	c := newCmd(t, d)
	b := spin(t, d, c)
	if err := b.Upload(background(), 0, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a second Start waits for the first
		if err := c.Start(background()); err != nil {
			t.Fatal(err)
		}
	}
	c.Reset()
	if err := c.Err(); err != nil {
		t.Fatal(err)
	}
	submit(t, c)
}

func TestNoAllocations(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1, 2, 3), tensor(t, d, "y", 10, 20, 30)
	c := newCmd(t, d)
	if n := testing.AllocsPerRun(20, func() {
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 3, A: 2}, x, y)
		c.Barrier()
	}); n != 0 {
		t.Errorf("recording a dispatch allocates %v times", n)
	}
	if n := testing.AllocsPerRun(20, func() { y = y.Narrow() }); n != 1 { // the slice
		t.Errorf("Narrow allocates %v times, want 1", n)
	}
	submit(t, c)
	least := testing.AllocsPerRun(20, func() { submit(t, c) })
	for try := 0; try < 10 && least > 0; try++ { // other goroutines allocate, too, when the machine is busy
		least = min(least, testing.AllocsPerRun(20, func() { submit(t, c) }))
	}
	if least != 0 {
		t.Errorf("Submit allocates %v times", least)
	}
}
