package vk_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// recording is a list of commands on three vectors, add a dispatch that reads one and writes
// another.
type recording struct {
	name   string
	want   int // barriers
	record func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor)
}

// recordings have parts of n elements, each a slice's alignment.
func recordings(t *testing.T, n int) []recording {
	return append(transfers(), []recording{
		{"nothing in common", 0, func(_ *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, y)
			add(x, z) // both read x
		}},
		{"read after write", 1, func(_ *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, y)
			add(y, z)
		}},
		{"write after read", 1, func(_ *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, y)
			add(z, x)
		}},
		{"write after write", 1, func(_ *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, y)
			add(z, y)
		}},
		{"as late as may be", 1, func(_ *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, part(t, y, 0, n))
			add(x, part(t, y, n, 2*n))
			add(part(t, y, 0, n), part(t, z, 0, n)) // one barrier is for both
			add(part(t, y, n, 2*n), part(t, z, n, 2*n))
		}},
		{"parts side by side", 0, func(_ *vk.Cmd, add func(from, to vk.Tensor), x, y, _ vk.Tensor) {
			for i := range 4 {
				add(part(t, y, 4*n, 5*n), part(t, y, i*n, (i+1)*n))
			}
		}},
		{"parts that meet", 1, func(_ *vk.Cmd, add func(from, to vk.Tensor), x, y, _ vk.Tensor) {
			add(x, part(t, y, 0, n+1))
			add(x, part(t, y, n, 2*n))
		}},
		{"a part and the whole", 1, func(_ *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, part(t, y, 3*n, 4*n))
			add(y, z)
		}},
		{"columns of rows, of which a kernel sees all from the first to the last", 1, func(_ *vk.Cmd, add func(from, to vk.Tensor), x, y, _ vk.Tensor) {
			left, right := y.Slice(0, 0, 3), y.Slice(0, n, n+3)
			left.Strides, right.Strides = []int{2 * n}, []int{2 * n}
			add(x, left.Narrow())
			add(x, right.Narrow())
		}},
		{"the caller's is enough", 1, func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, y)
			c.Barrier()
			add(y, z)
		}},
		{"the caller's is of other stages", 2, func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, y)
			c.BarrierToTransfer()
			add(y, z)
		}},
	}...)
}

// transfers are recordings with transfers.
func transfers() []recording {
	return []recording{
		{"dispatch, copy from what it wrote", 1, func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, y)
			c.Copy(z.Buffer, 0, y.Buffer, 4, 4)
		}},
		{"dispatch, fill of what it read", 1, func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, _ vk.Tensor) {
			add(x, y)
			c.Fill(x.Buffer, 0, 8, 0)
		}},
		{"dispatch, copy from what it read", 0, func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, y)
			c.Copy(z.Buffer, 0, x.Buffer, 0, 4)
		}},
		{"transfers, dispatch", 1, func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, _ vk.Tensor) {
			c.Fill(x.Buffer, 0, 8, 0)
			c.Write(y.Buffer, 0, make([]byte, 8))
			add(x, y)
		}},
		{"copy, dispatch that writes what it read", 1, func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			c.Copy(z.Buffer, 0, y.Buffer, 0, 4)
			add(x, y)
		}},
		{"fill, fill", 1, func(c *vk.Cmd, _ func(from, to vk.Tensor), x, _, _ vk.Tensor) {
			c.Fill(x.Buffer, 0, 8, 0)
			c.Fill(x.Buffer, 8, 8, 0)
			c.Fill(x.Buffer, 4, 8, 0)
		}},
		{"a barrier between dispatches is none for transfers", 2, func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, y)
			add(y, z)
			c.Copy(x.Buffer, 0, y.Buffer, 0, 8)
		}},
		{"one for transfers and dispatches together", 1, func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, z vk.Tensor) {
			add(x, y)
			c.Fill(z.Buffer, 0, 8, 0)
			add(y, z)
			c.Copy(x.Buffer, 32, x.Buffer, 0, 4)
		}},
		{"scratch", 2, func(c *vk.Cmd, add func(from, to vk.Tensor), x, y, _ vk.Tensor) {
			s := vk.View(c.Scratch("s", int64(4*len(numbered(8)))), dtype.Float32, 8)
			c.Fill(s.Buffer, 0, 32, 0)
			add(x, s)
			add(s, y)
		}},
	}
}

// TestBarriers counts the barriers of recordings. The validation layer objects to each that
// is missing: TestForget shows that it would.
func TestBarriers(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	n := int(sliceAlignment(d) / 4)
	for _, x := range recordings(t, n) {
		t.Run(x.name, func(t *testing.T) {
			c := newCmd(t, d)
			size := 6 * n
			vx, vy, vz := tensor(t, d, "x", numbered(size)...), tensor(t, d, "y", numbered(size)...), tensor(t, d, "z", numbered(size)...)
			add := func(from, to vk.Tensor) {
				k.Dispatch(c, vk.Groups{}, axpyParams{N: 3, A: 1, XOffset: uint32(from.Offset), YOffset: uint32(to.Offset)}, from, to)
			}
			for range 2 { // the second recording begins anew
				x.record(c, add, vx, vy, vz)
				require.Equal(t, x.want, c.Barriers())
				submit(t, c)
				c.Reset()
				require.Zero(t, c.Barriers())
			}
		})
	}
}

// part returns elements first to end-1 of a vector, on a slice of its buffer.
func part(t *testing.T, x vk.Tensor, first, end int) vk.Tensor {
	t.Helper()
	return x.Slice(0, first, end).Narrow()
}

// TestForget: without what Cmd remembers, the validation layer objects.
func TestForget(t *testing.T) {
	for name, record := range map[string]func(c *vk.Cmd, add func(), x, y vk.Tensor){
		"dispatch, dispatch": func(c *vk.Cmd, add func(), _, _ vk.Tensor) {
			add()
			c.Forget()
			add()
		},
		"dispatch, copy": func(c *vk.Cmd, add func(), x, y vk.Tensor) {
			add()
			c.Forget()
			c.Copy(x.Buffer, 0, y.Buffer, 0, 4)
		},
		"fill, dispatch": func(c *vk.Cmd, add func(), x, _ vk.Tensor) {
			c.Fill(x.Buffer, 0, 4, 0)
			c.Forget()
			add()
		},
		"fill, fill": func(c *vk.Cmd, _ func(), x, _ vk.Tensor) {
			c.Fill(x.Buffer, 0, 4, 0)
			c.Forget()
			c.Fill(x.Buffer, 0, 4, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := openValidated(t)
			x, y := tensor(t, d, "x", 1, 2, 3), tensor(t, d, "y", 10, 20, 30)
			c := newCmd(t, d)
			record(c, func() { axpy(t, d).Dispatch(c, vk.Groups{}, axpyParams{N: 3}, x, y) }, x, y)
			wantError(t, "Submit", c.Submit(background()), "validation layer", "SYNC-HAZARD")
			for _, o := range []interface{ Close() }{c, x, y} {
				o.Close()
			}
			wantError(t, "Close", d.Close(), "SYNC-HAZARD")
		})
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
