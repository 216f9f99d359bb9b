package vk_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// call records what a kernel package does: y += x by way of scratch memory of its own.
func call(t *testing.T, d *vk.Device, c *vk.Cmd, x, y vk.Tensor, bytes int64) *vk.Buffer {
	defer c.Scope()()
	s := c.Scratch("between", bytes)
	between := vk.View(s, dtype.Float32, 4)
	k, n := axpy(t, d), axpyParams{N: 4, A: 1}
	c.Fill(s, 0, 16, 0)
	k.Dispatch(c, vk.Groups{}, n, x, between)
	k.Dispatch(c, vk.Groups{}, n, between, y)
	return s
}

// offset returns where a slice begins.
func offset(b *vk.Buffer) int64 {
	_, at, _ := vk.View(b, dtype.Float32, 1).Memory()
	return at
}

// TestScope: calls take the memory of those before, but not of the one whose last kernel may
// still run: that would make it wait. Reordered, independent calls with scratch memory of their own run
// side by side.
func TestScope(t *testing.T) {
	d := vktest.Open(t)
	const calls = 16
	x, c := tensor(t, d, "x", 1, 2, 3, 4), newCmd(t, d)
	for _, reordered := range []bool{false, true, false} {
		// Each call has a barrier after the fill and one after the first dispatch. The second
		// one's first stands for what the first one's last kernel does, too.
		end, barriers := func() {}, 2*calls
		if reordered { // two places of scratch memory take turns: eight times, two calls run side by side
			end, barriers = c.Reorder(), 3*calls/2-1
		}
		var ys []vk.Tensor
		for i := range calls {
			y := tensor(t, d, "y", 10, 20, 30, 40)
			s := call(t, d, c, x, y, 1000)
			require.Equal(t, int64(i%2*1024), offset(s))
			ys = append(ys, y)
		}
		end()
		require.Equal(t, barriers, c.Barriers())
		submit(t, c)
		for _, y := range ys {
			wantTensor(t, y, 11, 22, 33, 44)
		}
		c.Reset()
	}
}

// TestScopeNested: an end frees what was taken since its beginning, and nothing else.
func TestScopeNested(t *testing.T) {
	d := vktest.Open(t)
	c := newCmd(t, d)
	take := func() int64 { return offset(c.Scratch("s", 256)) }
	require.EqualValues(t, 0, take()) // until Reset
	outer := c.Scope()
	require.EqualValues(t, 256, take())
	inner := c.Scope()
	require.EqualValues(t, 512, take())
	inner()
	require.EqualValues(t, 512, take())
	outer()
	require.EqualValues(t, 256, take())
	late := c.Scope()
	c.Reset()
	require.EqualValues(t, 0, take())
	require.EqualValues(t, 256, take())
	late() // of the recording before
	require.EqualValues(t, 512, take())
	require.NoError(t, c.Err())

	// What is out of order is an error.
	for _, e := range []struct {
		ends []int
		want string
	}{{[]int{0}, "ended before one that began after it"}, {[]int{1, 1}, "ended twice"}, {[]int{1, 0, 0}, "ended twice"}} {
		c.Reset()
		list := []func(){c.Scope(), c.Scope()}
		for _, i := range e.ends {
			list[i]()
		}
		wantError(t, "Submit", c.Submit(background()), e.want)
	}
	c.Reset()
	end := c.Scope()
	c.Close()
	end()
}

// TestScratchLarge: memory beyond 64 MiB is taken again at once.
func TestScratchLarge(t *testing.T) {
	d := vktest.Open(t)
	x, y, z := d.Placeholder("x", 16), d.Placeholder("y", 16), d.Placeholder("z", 16)
	view := func(b *vk.Buffer) vk.Tensor { return vk.View(b, dtype.Float32, 4) }
	for bytes, want := range map[int64]int64{64 << 20: 128 << 20, 64<<20 + 256: 64<<20 + 256} {
		got, err := d.Measure(func(c *vk.Cmd) error {
			call(t, d, c, view(x), view(y), bytes)
			call(t, d, c, view(x), view(z), bytes)
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
}

// TestMeasure: a recording with as much memory reserved as Measure says takes no more, whatever
// the sizes are.
func TestMeasure(t *testing.T) {
	d := vktest.Open(t)
	x, y := tensor(t, d, "x", 1, 2, 3, 4), tensor(t, d, "y", 0, 0, 0, 0)
	record := func(c *vk.Cmd) error {
		for i := range int64(9) {
			call(t, d, c, x, y, 1000<<i)
			c.Scratch("kept", 300*(i+1))
		}
		return c.Err()
	}
	before := d.Memory()
	bytes := must(d.Measure(record))
	require.Equal(t, before, d.Memory(), "measuring allocates nothing")
	require.Greater(t, bytes, int64(1000<<8))
	c := newCmd(t, d)
	for range 3 {
		require.NoError(t, record(c))
		submit(t, c)
		c.Reset()
	}
	require.NoError(t, record(c))
	taken := d.Memory().Bytes - before.Bytes
	require.GreaterOrEqual(t, taken, bytes)
	require.LessOrEqual(t, taken, 2*bytes)
	wantTensor(t, y, 27, 54, 81, 108)

	count := d.Memory()
	again, err := d.Measure(func(c *vk.Cmd) error {
		c.Scratch("before", 1<<20)
		c.Reset()
		return record(c)
	})
	require.NoError(t, err)
	require.Equal(t, bytes, again)
	require.Equal(t, count, d.Memory())

	_, err = d.Measure(func(c *vk.Cmd) error { c.Scratch("s", 1<<62); return nil })
	wantError(t, "Measure", err, `"s"`, "allocation may have")
	oops := errors.New("oops")
	_, err = d.Measure(func(*vk.Cmd) error { return oops })
	require.Equal(t, oops, err)
	_, err = d.Measure(func(c *vk.Cmd) error { return c.Submit(context.Background()) })
	wantError(t, "Submit", err, "only measures")
}

// TestScratchWhole binds all of the memory that scratch buffers are slices of.
func TestScratchWhole(t *testing.T) {
	d := vktest.Open(t)
	y, c := tensor(t, d, "y", 1, 2, 3, 4), newCmd(t, d)
	s := c.Scratch("s", 64)
	c.Fill(s, 0, 64, 0)
	end := c.Scope()
	c.Scratch("t", 64)
	end()
	whole := memory(s)
	axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 4, A: 1}, vk.View(whole, dtype.Float32, 4), y)
	require.NotEqual(t, whole, memory(c.Scratch("u", 64)), "all of the block is in use")
	require.Equal(t, 1, c.Barriers())
	submit(t, c)
	wantTensor(t, y, 1, 2, 3, 4)
}

// TestPlaceholder: every use but in Measure is an error.
func TestPlaceholder(t *testing.T) {
	d := vktest.Open(t)
	p := d.Placeholder("p", 16)
	x, c := vk.View(p, dtype.Float32, 4), newCmd(t, d)
	axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 4}, x, x)
	wantError(t, "Dispatch", c.Err(), `placeholder "p" has no memory`)
	c.Reset()
	c.Fill(p, 0, 4, 0)
	wantError(t, "Fill", c.Err(), `placeholder "p" has no memory`)
	wantError(t, "Upload", x.Upload(background(), make([]float32, 4)), "no memory")
	wantError(t, "Download", p.Download(background(), 0, make([]byte, 4)), "no memory")
	p.Close() // does nothing
}

// TestMemory counts buffers, by name, until they are closed.
func TestMemory(t *testing.T) {
	d := vktest.Open(t)
	d.ResetPeak()
	start := d.Memory()
	a := must(d.NewBuffer("a", 1<<20))
	b := must(d.NewBuffer("a", 1<<20))
	must(b.Slice(0, 1<<10))
	now := d.Memory()
	require.GreaterOrEqual(t, now.Bytes, start.Bytes+2<<20)
	require.Equal(t, vk.NamedMemory{Name: "a", Bytes: now.Bytes - start.Bytes, Peak: now.Bytes - start.Bytes, Buffers: 2}, now.Buffers[0])
	a.Close()
	b.Close()
	after := d.Memory()
	require.Equal(t, start.Bytes, after.Bytes)
	require.Equal(t, now.Peak, after.Peak)
	require.Zero(t, after.Buffers[0].Buffers)
	d.ResetPeak()
	require.Equal(t, start, d.Memory())
	_, err := d.NewBuffer("none", -1)
	require.Error(t, err)
	require.Equal(t, start, d.Memory())
}

// TestZeros wants memory of zeros, and again what commands leave there. Scratch memory holds the
// word of PoisonScratch each time that it is taken, also where the recording before wrote it.
func TestZeros(t *testing.T) {
	d := vktest.Open(t, func(o *vk.Options) { o.PoisonScratch = 0xffffffff })
	c, to, poison := newCmd(t, d), newBuffer(t, d, "to", 64), newBuffer(t, d, "poison", 64)
	for range 2 {
		end := c.Scope()
		z := c.Zeros("z", 60)
		c.Copy(to, 0, z, 0, 60)
		s := c.Scratch("s", 60)
		require.NotEqual(t, memory(z), memory(s))
		require.NotEqual(t, offset(z), offset(c.Zeros("other", 60)))
		c.Copy(poison, 0, s, 0, 60)
		c.Fill(s, 0, 60, 0)
		end()
		submit(t, c)
		wantBytes(t, to, make([]byte, 60))
		wantBytes(t, poison, bytes.Repeat([]byte{0xff}, 60))
		c.Reset()
	}
	bytes, err := d.Measure(func(c *vk.Cmd) error {
		c.Zeros("z", 60)
		return nil
	})
	require.NoError(t, err)
	require.Zero(t, bytes)
}
