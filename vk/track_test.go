package vk_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// recordings are commands and how many barriers they need. Each command is one of
//
//	x+y   a dispatch that reads x and writes y
//	x>y   a copy, 0>y a fill, w>y a write
//	|     the caller's barrier
//	!     Forget
//
// on vectors x, y and z of six parts, as large as a slice's alignment, and scratch memory s: y[1:2] is part 1,
// y[1:2+] has one more element, y%1 is a column that begins there, y@8 begins at byte 8.
var recordings = []struct {
	name string
	want int
	list string
}{
	{"nothing in common but what is read", 0, "x+y x+z"},
	{"read after write", 1, "x+y y+z"},
	{"write after read", 1, "x+y z+x"},
	{"write after write", 1, "x+y z+y"},
	{"as late as may be: one barrier is for both", 1, "x+y[0:1] x+y[1:2] y[0:1]+z[0:1] y[1:2]+z[1:2]"},
	{"parts side by side", 0, "y[4:5]+y[0:1] y[4:5]+y[1:2] y[4:5]+y[2:3] y[4:5]+y[3:4]"},
	{"parts that meet", 1, "x+y[0:1+] x+y[1:2]"},
	{"a part and the whole", 1, "x+y[3:4] y+z"},
	{"columns of rows, of which a kernel sees all from the first to the last", 1, "x+y%0 x+y%1"},
	{"the caller's is enough", 1, "x+y | y+z"},
	{"the caller's is of other stages", 2, "x+y | y>z"},
	{"dispatch, copy from what it wrote", 1, "x+y y>z"},
	{"dispatch, fill of what it read", 1, "x+y 0>x"},
	{"dispatch, copy from what it read", 0, "x+y x>z"},
	{"transfers, dispatch", 1, "0>x w>y x+y"},
	{"copy, dispatch that writes what it read", 1, "y>z x+y"},
	{"fill, fill", 1, "0>x 0>x@8 0>x@4"},
	{"a barrier between dispatches is none for transfers", 2, "x+y y+z y>x"},
	{"one for transfers and dispatches together", 1, "x+y 0>z y+z x>x@32"},
	{"scratch", 2, "0>s x+s s+y"},
}

func play(t *testing.T, d *vk.Device, c *vk.Cmd, list string, vectors map[string]vk.Tensor) {
	n := int(sliceAlignment(d) / 4)
	operand := regexp.MustCompile(`^([xyzs])(?:\[(\d):(\d)(\+?)\]|%(\d)|@(\d+))?$`)
	view := func(word string) vk.Tensor {
		m := operand.FindStringSubmatch(word)
		require.NotNil(t, m, word)
		x, number := vectors[m[1]], func(i int) int { n, _ := strconv.Atoi(m[i]); return n }
		switch {
		case m[2] != "":
			return part(t, x, number(2)*n, number(3)*n+len(m[4]))
		case m[5] != "":
			x = x.Slice(0, number(5)*n, number(5)*n+3)
			x.Strides = []int{2 * n}
			return x.Narrow()
		}
		x.Offset = number(6) / 4
		return x
	}
	for _, word := range strings.Fields(list) {
		reads, writes, dispatch := strings.Cut(word, "+")
		from, to, _ := strings.Cut(word, ">")
		switch {
		case word == "|":
			c.Barrier()
		case word == "!":
			c.Forget()
		case dispatch:
			x, y := view(reads), view(writes)
			axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 3, A: 1, XOffset: uint32(x.Offset), YOffset: uint32(y.Offset)}, x, y)
		default:
			y := view(to)
			switch at := int64(4 * y.Offset); from {
			case "0":
				c.Fill(y.Buffer, at, 8, 0)
			case "w":
				c.Write(y.Buffer, at, make([]byte, 8))
			default:
				c.Copy(y.Buffer, at, view(from).Buffer, 4, 4)
			}
		}
	}
}

// TestBarriers counts the barriers of recordings. The validation layer objects to each that
// is missing: TestForget shows that it would.
func TestBarriers(t *testing.T) {
	d := vktest.Open(t)
	size := 6 * int(sliceAlignment(d)/4)
	vectors := map[string]vk.Tensor{}
	for _, name := range []string{"x", "y", "z"} {
		vectors[name] = tensor(t, d, name, numbered(size)...)
	}
	c := newCmd(t, d)
	for _, x := range recordings {
		for range 2 { // the second recording begins anew
			vectors["s"] = vk.View(c.Scratch("s", 32), dtype.Float32, 8)
			play(t, d, c, x.list, vectors)
			require.Equal(t, x.want, c.Barriers(), x.name)
			require.NoError(t, c.Submit(background()), x.name)
			c.Reset()
			require.Zero(t, c.Barriers())
		}
	}
}

// part returns elements first to end-1 of a vector, on a slice of its buffer.
func part(t *testing.T, x vk.Tensor, first, end int) vk.Tensor {
	t.Helper()
	return x.Slice(0, first, end).Narrow()
}

// TestForget: without what Cmd remembers, the validation layer objects.
func TestForget(t *testing.T) {
	for _, list := range []string{"x+y ! x+y", "x+y ! y>x", "0>x ! x+y", "0>x ! 0>x"} {
		d := openValidated(t)
		x, y := tensor(t, d, "x", 1, 2, 3), tensor(t, d, "y", 10, 20, 30)
		c := newCmd(t, d)
		play(t, d, c, list, map[string]vk.Tensor{"x": x, "y": y})
		wantError(t, list, c.Submit(background()), "validation layer", "SYNC-HAZARD")
		for _, o := range []interface{ Close() }{c, x, y} {
			o.Close()
		}
		wantError(t, "Close", d.Close(), "SYNC-HAZARD")
	}
}

// command is one of a random recording: what it reads and writes, in blocks of a buffer.
type command struct {
	transfer bool
	from, to int
	copied   bool // from is read
}

// TestRandomRecordings has commands on random parts of one buffer. Each must see what all
// before it wrote, the validation layer must be silent, and there are as many barriers as a
// plain model of the rule wants.
func TestRandomRecordings(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	n := int(sliceAlignment(d) / 4)
	const blocks, commands = 12, 30
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 1))
		want := make([]float32, blocks*n)
		for i := range want {
			want[i] = float32(rng.IntN(3))
		}
		x := tensor(t, d, "x", want...)
		c := newCmd(t, d)
		var list []command
		for range commands {
			a, b := rng.IntN(blocks), rng.IntN(blocks-1)
			if b >= a {
				b++
			}
			now := command{transfer: rng.IntN(4) == 0, from: a, to: b, copied: true}
			switch {
			case !now.transfer:
				from, to := part(t, x, a*n, (a+1)*n), part(t, x, b*n, (b+1)*n)
				k.Dispatch(c, vk.Groups{}, axpyParams{N: uint32(min(n, 64)), A: 1}, from, to)
				for i := range min(n, 64) {
					want[b*n+i] += want[a*n+i]
				}
			case rng.IntN(2) == 0:
				c.Copy(x.Buffer, int64(4*b*n), x.Buffer, int64(4*a*n), int64(4*n))
				copy(want[b*n:(b+1)*n], want[a*n:(a+1)*n])
			default:
				now.copied = false
				c.Fill(x.Buffer, int64(4*b*n), int64(4*n), 0)
				clear(want[b*n : (b+1)*n])
			}
			list = append(list, now)
		}
		require.Equal(t, modelBarriers(list), c.Barriers(), "seed %d", seed)
		submit(t, c)
		wantTensor(t, x, want...)
		c.Close()
		x.Close()
	}
}

// modelBarriers counts the barriers of commands by looking at each pair.
func modelBarriers(list []command) (n int) {
	stage := func(c command) int {
		if c.transfer {
			return 1
		}
		return 0
	}
	var since [2][2]int // the first command that no barrier has ordered before the other stage
	for i, now := range list {
		to, conflict := stage(now), false
		var stages [2]bool
		for from := range 2 {
			for _, before := range list[since[from][to]:i] {
				if stage(before) != from {
					continue
				}
				stages[from] = true
				reads := now.copied && now.from == before.to
				writes := now.to == before.to || before.copied && now.to == before.from
				conflict = conflict || reads || writes
			}
		}
		if !conflict {
			continue
		}
		n++
		all := to == 1 || stages[1] // dispatches alone where no transfer has a part in it
		for from := range 2 {
			for s := range 2 {
				if stages[from] && (s == to || all && (stages[1] || s == to)) {
					since[from][s] = i
				}
			}
		}
	}
	return n
}

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
	trace := must(d.NewTrace(10))
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

// TestReorderEnds: commands that are deferred at the end of a recording belong to the recording,
// but not commands deferred at a Reset. Barriers, timestamps and changed data between stay in their
// places.
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

	timer := must(d.NewTimer(2))
	defer timer.Close()
	c.Reset()
	end = c.Reorder()
	c.Timestamp(timer, 0)
	spin(t, d, c)
	c.Timestamp(timer, 1)
	end()
	submit(t, c)
	spent := must(timer.Nanoseconds(0, 1))
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
				k := must(vk.NewKernel[axpyParams](d, "own", axpySPIRV, axpySpec{Scale: 1}, vk.KernelOptions{}))
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
	const steps = 2500 // and more than one descriptor pool holds
	for n := range 2 {
		end := c.Reorder()
		for i := range steps {
			k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1}, v[0], v[1+i%2])
		}
		end()
		require.LessOrEqual(t, c.Barriers(), steps/2+1)
		submit(t, c)
		wantTensor(t, v[2], float32((n+1)*steps/2))
		c.Reset()
	}
}
