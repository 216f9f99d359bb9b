package vk_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestReorderRandom has commands on random parts of one buffer and of scratch memory, once in order
// and once reordered: each must see what all before it wrote, with fewer barriers in all and never
// more, and the validation layer must be silent.
func TestReorderRandom(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	n := int(sliceAlignment(d) / 4)
	const blocks, commands = 16, 40
	var barriers [2]int
	for seed := uint64(530); seed < 550; seed++ { // 547: barriers for dispatches alone would be one more
		var got [2][]float32
		var counts [2]int
		for i := range got {
			rng := rand.New(rand.NewPCG(seed, 2))
			first := make([]float32, blocks*n)
			for j := range first {
				first[j] = float32(rng.IntN(3))
			}
			x := tensor(t, d, "x", first...)
			c := newCmd(t, d)
			end := func() {}
			if i == 1 {
				end = c.Reorder()
			}
			c.Copy(x.Buffer, 0, x.Buffer, int64(4*n), int64(4*n)) // before the part
			k.Dispatch(c, vk.Groups{}, axpyParams{N: 64, A: 1}, part(t, x, 2*n, 3*n), part(t, x, 3*n, 4*n))
			for i := range commands {
				if i == commands-5 {
					end()
				}
				a, b := rng.IntN(blocks), rng.IntN(blocks-1)
				if b >= a {
					b++
				}
				switch rng.IntN(10) {
				case 0:
					c.Copy(x.Buffer, int64(4*b*n), x.Buffer, int64(4*a*n), int64(4*n))
				case 1:
					c.Fill(x.Buffer, int64(4*b*n), int64(4*n), 0)
				case 2:
					c.Write(x.Buffer, int64(4*b*n), binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(a))))
				case 3:
					if rng.IntN(4) == 0 {
						c.Barrier()
					}
				case 4, 5:
					done := c.Scope()
					s := c.Scratch("s", int64(4*n))
					c.Copy(s, 0, x.Buffer, int64(4*a*n), int64(4*n))
					k.Dispatch(c, vk.Groups{}, axpyParams{N: uint32(min(n, 64)), A: 1}, vk.View(s, dtype.Float32, n), part(t, x, b*n, (b+1)*n))
					done()
				default:
					k.Dispatch(c, vk.Groups{}, axpyParams{N: uint32(min(n, 64)), A: 1}, part(t, x, a*n, (a+1)*n), part(t, x, b*n, (b+1)*n))
				}
			}
			counts[i] = c.Barriers()
			barriers[i] += counts[i]
			submit(t, c)
			got[i] = make([]float32, len(first))
			require.NoError(t, x.Download(background(), got[i]))
			c.Close()
			x.Close()
		}
		require.Equal(t, got[0], got[1], "seed %d", seed)
		require.LessOrEqual(t, counts[1], counts[0], "seed %d", seed)
	}
	t.Logf("%d barriers, reordered %d", barriers[0], barriers[1])
	require.Less(t, barriers[1], barriers[0])
}

// TestReorder has the example of the documentation.
func TestReorder(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	var v [7]vk.Tensor
	for i := range v {
		v[i] = tensor(t, d, string(rune('a'+i)), float32(i), 1)
	}
	c := newCmd(t, d)
	add := func(to, from int) { k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, v[from], v[to]) }
	trace, err := d.NewTrace(10)
	require.NoError(t, err)
	defer trace.Close()
	record := func() {
		for _, x := range [][2]int{{0, 5}, {1, 0}, {2, 1}, {3, 6}, {4, 3}} {
			c.Note(func() vk.Note { return vk.Note{Text: string(rune('a' + x[0]))} })
			add(x[0], x[1])
		}
	}
	for _, reordered := range []bool{false, true} {
		c.Reset()
		c.Trace(trace)
		end := func() {}
		if reordered {
			end = c.Reorder()
			inner := c.Reorder() // changes nothing
			record()
			inner()
			require.Empty(t, trace.Dispatches())
		} else {
			record()
		}
		end()
		text := ""
		for _, x := range trace.Dispatches() {
			if !x.Beside {
				text += "|"
			}
			text += x.Note.Text
		}
		require.Equal(t, map[bool]string{false: "|a|b|cd|e", true: "|ad|be|c"}[reordered], text)
		require.Equal(t, map[bool]int{false: 3, true: 2}[reordered], c.Barriers())
		submit(t, c)
	}
	// a and d had 5 and 6 added twice, b and e what those were then, c what b was.
	wantTensor(t, v[2], 2+(1+5)+(6+10), 1+3+6)
	wantTensor(t, v[4], 4+(3+6)+(3+12), 1+2+3)
}

// TestReorderScratch has independent calls with scratch memory of their own.
func TestReorderScratch(t *testing.T) {
	d := vktest.Open(t)
	const calls = 16
	c, x := newCmd(t, d), tensor(t, d, "x", 1, 2, 3, 4)
	for _, reordered := range []bool{false, true} {
		var ys []vk.Tensor
		end := func() {}
		if reordered {
			end = c.Reorder()
		}
		for range calls {
			y := tensor(t, d, "y", 10, 20, 30, 40)
			call(t, d, c, x, y, 1000)
			ys = append(ys, y)
		}
		end()
		// Two places of scratch memory take turns: eight times, two calls run side by side.
		require.Equal(t, map[bool]int{false: 2 * calls, true: 3*calls/2 - 1}[reordered], c.Barriers())
		submit(t, c)
		for _, y := range ys {
			wantTensor(t, y, 11, 22, 33, 44)
		}
		c.Reset()
	}
}

// TestReorderEnds: what is deferred when the recording ends is a part of it; what a Reset finds is
// not; and barriers, timestamps and data that change in between are where they were.
func TestReorderEnds(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	k := axpy(t, d)
	x, y := tensor(t, d, "x", 1, 2), tensor(t, d, "y", 10, 20)
	add := func(c *vk.Cmd) { k.Dispatch(c, vk.Groups{}, axpyParams{N: 2, A: 1}, x, y) }
	c := newCmd(t, d)
	end := c.Reorder()
	add(c)
	c.Reset()
	end()
	require.NoError(t, c.Err())

	c.Reorder() // no end
	add(c)
	submit(t, c)
	wantTensor(t, y, 11, 22)
	submit(t, c)
	wantTensor(t, y, 12, 24)

	c.Reset()
	end = c.Reorder()
	data := []byte{0, 0, 0, 0}
	c.Write(y.Buffer, 0, data)
	data[3] = 1
	end()
	end()
	submit(t, c)
	wantTensor(t, y, 0, 24)

	timer, err := d.NewTimer(2)
	require.NoError(t, err)
	defer timer.Close()
	c.Reset()
	end = c.Reorder()
	c.Timestamp(timer, 0)
	spin(t, d, c)
	c.Timestamp(timer, 1)
	end()
	submit(t, c)
	spent, err := timer.Nanoseconds(0, 1)
	require.NoError(t, err)
	require.Positive(t, spent)

	// Errors of commands are found when they are recorded, and those that follow are skipped.
	c.Reset()
	end = c.Reorder()
	k.Dispatch(c, vk.Groups{}, axpyParams{N: 2}, x)
	require.ErrorContains(t, c.Err(), "takes 2 tensors, got 1")
	end()
	wantError(t, "Submit", c.Submit(background()), "takes 2 tensors, got 1")
	c.Reset()
	c.Close()
	c.Reorder()()
}

// TestReorderClosed: what is closed between Reorder and its end is an error of Submit, and lives until
// its commands are recorded.
func TestReorderClosed(t *testing.T) {
	d := vktest.Open(t)
	for name, want := range map[string]string{
		"kernel": `kernel "own", which is closed`, "buffer": `buffer "y", which is closed`, "scratch": `scratch buffer "s", which is closed`, "cmd": "after Close",
	} {
		t.Run(name, func(t *testing.T) {
			for range 10 { // memory that is used too late is not found at once
				k, err := vk.NewKernel[axpyParams](d, "own", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{})
				require.NoError(t, err)
				c, other, x, y := newCmd(t, d), newCmd(t, d), tensor(t, d, "x", 1), tensor(t, d, "y", 7)
				s := other.Scratch("s", 4)
				end := c.Reorder()
				k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, x, y)
				c.Copy(y.Buffer, 0, s, 0, 4)
				wantTensor(t, y, 7) // which waits for all uploads
				open := d.Memory().Bytes
				map[string]func(){"kernel": k.Close, "buffer": y.Close, "scratch": other.Close, "cmd": c.Close}[name]()
				require.True(t, name == "cmd" || d.Memory().Bytes == open)
				end()
				wantError(t, "Submit", c.Submit(background()), want)
				c.Close()
				y.Close()
				other.Close()
				k.Close()
				x.Close()
				require.Less(t, d.Memory().Bytes, open)
			}
		})
	}
}

// TestReorderMany has more commands than are compared with each other, in chains that cross.
func TestReorderMany(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	k := axpy(t, d)
	v := []vk.Tensor{tensor(t, d, "x", 1), tensor(t, d, "y", 0), tensor(t, d, "z", 0)}
	c := newCmd(t, d)
	end := c.Reorder()
	const steps = 2500
	for i := range steps {
		k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, v[0], v[1+i%2])
	}
	k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, v[1], v[2])
	end()
	require.LessOrEqual(t, c.Barriers(), steps/2+1)
	submit(t, c)
	wantTensor(t, v[2], steps)
}
