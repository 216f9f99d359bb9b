package vk_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

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
		require.NoError(t, c.Start(background()))
		cmds = append(cmds, c)
	}
	wantTensor(t, y, 10)
	for i := len(cmds) - 1; i >= 0; i-- { // in any order, and twice
		require.NoError(t, cmds[i].Wait(background()))
		require.NoError(t, cmds[i].Wait(background()))
	}
}

// TestExplicitBarrier records the caller's barrier.
func TestExplicitBarrier(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1, 2), tensor(t, d, "y", 0, 0)
	c := newCmd(t, d)
	add := func() { k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, x, y) }
	add()
	c.Barrier()
	c.Forget() // and so there is none but the caller's
	add()      // y = 2x
	submit(t, c)
	wantTensor(t, y, 2, 4)
}

// TestRecordingErrors: the first error is kept, and nothing runs.
func TestRecordingErrors(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1), tensor(t, d, "y", 7)
	closedBuffer := newBuffer(t, d, "closed", 16)
	closedBuffer.Close()
	closedKernel := must(vk.NewKernel[axpyParams](d, "closed", axpySPIRV, nil, vk.KernelOptions{}))
	closedKernel.Close()
	closedTimer := must(d.NewTimer(1))
	closedTimer.Close()
	timer := must(d.NewTimer(2))
	defer timer.Close()
	tooMany := d.Caps().MaxWorkgroupCount[1] + 1
	dispatch := func(g vk.Groups, tensors ...vk.Tensor) func(c *vk.Cmd) {
		return func(c *vk.Cmd) { k.Dispatch(c, g, axpyParams{}, tensors...) }
	}
	for name, e := range map[string]struct {
		record func(c *vk.Cmd)
		want   string
	}{
		"too few tensors":  {dispatch(vk.Groups{}, x), "takes 2 tensors, got 1"},
		"too many tensors": {dispatch(vk.Groups{}, x, y, x), "takes 2 tensors, got 3"},
		"zero tensor":      {dispatch(vk.Groups{}, x, vk.Tensor{}), "tensor 1 has no open buffer"},
		"closed tensor":    {dispatch(vk.Groups{}, vk.View(closedBuffer, dtype.Float32, 1), y), "tensor 0 has no open buffer"},
		"groups":           {dispatch(vk.Groups{Y: tooMany}, x, y), "workgroups in direction Y"},
		"closed kernel": {
			func(c *vk.Cmd) { closedKernel.Dispatch(c, vk.Groups{}, axpyParams{}, x, y) }, `kernel "closed" is closed`,
		},
		"fill range":       {func(c *vk.Cmd) { c.Fill(x.Buffer, 0, 8, 0) }, `buffer "x" has 4 bytes`},
		"fill alignment":   {func(c *vk.Cmd) { c.Fill(x.Buffer, 1, 2, 0) }, "not a multiple of 4"},
		"fill nothing":     {func(c *vk.Cmd) { c.Fill(x.Buffer, 0, 0, 0) }, "size must be positive"},
		"fill closed":      {func(c *vk.Cmd) { c.Fill(closedBuffer, 0, 4, 0) }, "closed"},
		"fill nil":         {func(c *vk.Cmd) { c.Fill(nil, 0, 4, 0) }, "never made"},
		"write range":      {func(c *vk.Cmd) { c.Write(x.Buffer, 4, make([]byte, 4)) }, `buffer "x" has 4 bytes`},
		"write alignment":  {func(c *vk.Cmd) { c.Write(x.Buffer, 0, make([]byte, 2)) }, "not a multiple of 4"},
		"write nothing":    {func(c *vk.Cmd) { c.Write(x.Buffer, 0, nil) }, "size must be positive"},
		"copy from":        {func(c *vk.Cmd) { c.Copy(x.Buffer, 0, y.Buffer, 1, 4) }, `buffer "y" has 4 bytes`},
		"copy to":          {func(c *vk.Cmd) { c.Copy(x.Buffer, -1, y.Buffer, 0, 4) }, `buffer "x" has 4 bytes`},
		"copy overlap":     {func(c *vk.Cmd) { c.Copy(x.Buffer, 0, x.Buffer, 1, 3) }, "overlap"},
		"timestamp index":  {func(c *vk.Cmd) { c.Timestamp(timer, 2) }, "index 2 is not in 0..1"},
		"timestamp closed": {func(c *vk.Cmd) { c.Timestamp(closedTimer, 0) }, "closed"},
		"timestamp nil":    {func(c *vk.Cmd) { c.Timestamp(nil, 0) }, "closed"},
		"trace nil":        {func(c *vk.Cmd) { c.Trace(nil) }, "Trace: there is none"},
		"zeros size":       {func(c *vk.Cmd) { c.Zeros("z", 0) }, `buffer "z" of 0 bytes: the size must be positive`},
		"scratch size":     {func(c *vk.Cmd) { c.Scratch("s", -4) }, "must be positive"},
		"scratch too large": {func(c *vk.Cmd) {
			s := c.Scratch("s", 1<<62) // the buffer that comes back serves to go on
			k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, vk.View(s, dtype.Float32, 1), y)
		}, "more than one allocation may have"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCmd(t, d)
			k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
			e.record(c)
			first := c.Err()
			wantError(t, "Err", first, e.want)
			require.Equal(t, name == "groups" || name == "scratch too large", errors.Is(first, vk.ErrUnsupported))
			k.Dispatch(c, vk.Groups{}, axpyParams{}, x) // wrong too, but later
			require.Equal(t, first, c.Submit(background()))
			wantTensor(t, y, 7)
			c.Reset()
			submit(t, c)
		})
	}
}

// TestKeep wants the first error of a function that records, and no run of what it left.
func TestKeep(t *testing.T) {
	d := vktest.Open(t)
	c := newCmd(t, d)
	half := func(err error) (result error) {
		defer c.Keep(&result)
		return err
	}
	require.NoError(t, half(nil))
	require.NoError(t, c.Err())
	first, second := errors.New("first"), errors.New("second")
	require.Equal(t, first, half(first))
	require.Equal(t, second, half(second))
	require.Equal(t, first, c.Submit(background()))
	c.Reset()
	submit(t, c)
}

// TestWrite writes more than fits one command, changes the source, and submits twice: the
// commands have what was recorded.
func TestWrite(t *testing.T) {
	d := vktest.Open(t)
	const n = 40000
	b := newBuffer(t, d, "b", 4*n+8)
	want := make([]byte, 4*n+8)
	for i := range 4 * n {
		want[4+i] = byte(i / 4 % 251)
	}
	data := bytes.Clone(want[4 : 4+4*n])
	c := newCmd(t, d)
	c.Fill(b, 0, 4*n+8, 0)
	c.Write(b, 4, data)
	clear(data)
	for range 2 {
		require.NoError(t, b.Upload(background(), 0, bytes.Repeat([]byte{7}, len(want))))
		submit(t, c)
		wantBytes(t, b, want)
	}
}

// TestModules wants each module of this recording once, whatever it was specialized to, and no
// other.
func TestModules(t *testing.T) {
	d := vktest.Open(t)
	x, y := tensor(t, d, "x", 1, 2), tensor(t, d, "y", 3, 4)
	c := newCmd(t, d)
	require.Empty(t, c.Modules())
	twice := must(vk.CachedKernel[axpyParams](d, "axpy", axpySPIRV, axpySpec{Scale: 2}, vk.KernelOptions{}))
	other := must(vk.NewKernel[axpyParams](d, "another", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{}))
	t.Cleanup(other.Close)
	for _, k := range []*vk.Kernel[axpyParams]{axpy(t, d), twice, other, axpy(t, d)} {
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, x, y)
	}
	want := []vk.ModuleInfo{{Name: "another", SPIRV: axpySPIRV}, {Name: "axpy", SPIRV: axpySPIRV}}
	require.Equal(t, want, c.Modules())
	submit(t, c)
	require.Equal(t, want, c.Modules())
	c.Reset()
	require.Empty(t, c.Modules())
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
	k := must(vk.NewKernel[axpyParams](d, "own", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{}))
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
	require.NotEqual(t, offset(a), offset(b), "two scratch buffers of one recording are one")
	a.Close() // is the Cmd's: no effect
	submit(t, c)
	wantTensor(t, y, 3, 6)

	c.Reset()
	a2, b2 := record()
	require.Same(t, memory(a), memory(a2), "Reset did not keep the memory")
	require.Same(t, memory(a), memory(b2), "Reset did not keep the memory")
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
	k := must(vk.CachedKernel[spinParams](d, "spin", spinSPIRV, nil, vk.KernelOptions{}))
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
	require.ErrorIs(t, c.Submit(canceled), context.Canceled)
	require.NoError(t, b.Upload(background(), 0, make([]byte, 4)))
	wantBytes(t, b, make([]byte, 4)) // it did not run

	_, open := busy(t, d)
	soon, cancel := context.WithTimeout(background(), 5*time.Millisecond)
	defer cancel()
	require.NoError(t, c.Start(background()))
	require.ErrorIs(t, c.Submit(soon), context.DeadlineExceeded)
	require.ErrorIs(t, c.Wait(soon), context.DeadlineExceeded)
	open()
	got := make([]byte, 1)
	require.NoError(t, b.Download(background(), 0, got)) // waits, and has what the kernel wrote
	require.NotZero(t, got[0])
	require.NoError(t, c.Wait(background()))
}

// TestCloseInFlight closes everything while the device works on it.
func TestCloseInFlight(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	c := newCmd(t, d)
	b := spin(t, d, c)
	timer := must(d.NewTimer(1))
	s := c.Scratch("s", 64)
	c.Fill(s, 0, 64, 0)
	c.Timestamp(timer, 0)
	_, open := busy(t, d)
	require.NoError(t, c.Start(background()))
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
	require.NoError(t, c.Start(background()))
}

// TestResetInFlight: Reset waits for what runs.
func TestResetInFlight(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	c := newCmd(t, d)
	b := spin(t, d, c)
	require.NoError(t, b.Upload(background(), 0, make([]byte, 4)))
	require.NoError(t, c.Start(background()))
	require.NoError(t, c.Start(background())) // waits for the first
	c.Reset()
	require.NoError(t, c.Err())
	submit(t, c)
}

func TestNoAllocations(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1, 2, 3), tensor(t, d, "y", 10, 20, 30)
	c := newCmd(t, d)
	require.Zero(t, testing.AllocsPerRun(20, func() {
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 3, A: 2}, x, y)
		c.Barrier()
	}), "of a dispatch")
	require.Zero(t, testing.AllocsPerRun(20, func() { y = y.Narrow() }), "of a tensor that is all of its buffer")
	part := tensor(t, d, "many", make([]float32, 64)...).Slice(0, 0, 4)
	require.EqualValues(t, 1, testing.AllocsPerRun(20, func() { part.Narrow() }), "the slice")
	submit(t, c)
	least := testing.AllocsPerRun(20, func() { submit(t, c) })
	for try := 0; try < 10 && least > 0; try++ { // other goroutines allocate, too, when the machine is busy
		least = min(least, testing.AllocsPerRun(20, func() { submit(t, c) }))
	}
	require.Zero(t, least, "of Submit")
}
