package record

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func nothing(*vk.Cmd) error { return nil }

// TestPlan draws programs. Tensors that are needed at once must lie apart, each inside a chunk
// and aligned, and the memory must be little more than the least possible.
func TestPlan(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var bytes, live int64
	for range 200 {
		p := New("test")
		steps := 1 + rng.IntN(40)
		var known []*Tensor
		for i := range rng.IntN(3) {
			known = append(known, p.Input(fmt.Sprint("in", i), dtype.Float32, 1+rng.IntN(500)))
		}
		for i := range steps {
			var reads []*Tensor
			for range min(len(known), rng.IntN(4)) {
				reads = append(reads, known[len(known)-1-rng.IntN(min(len(known), 8))])
			}
			out := p.Tensor(fmt.Sprint("t", i), dtype.Float16, 1+rng.IntN(3000))
			if rng.IntN(10) == 0 {
				p.Output(out)
			}
			p.Step(fmt.Sprint("step", i), reads, []*Tensor{out, p.Scratch("scratch", int64(rng.IntN(2)*1000))}, nothing)
			known = append(known, out)
		}
		limit := int64(1 << (13 + rng.IntN(10)))
		m, err := p.Plan(limit)
		require.NoError(t, err)
		for i, a := range p.tensors {
			require.Zero(t, a.offset%align)
			require.LessOrEqual(t, a.offset+a.bytes, m.Chunks[a.chunk])
			require.LessOrEqual(t, m.Chunks[a.chunk], limit)
			for _, b := range p.tensors[:i] {
				atOnce := a.first <= b.last+apartSteps && b.first <= a.last+apartSteps // all are small
				meet := a.chunk == b.chunk && a.offset < b.offset+b.bytes && b.offset < a.offset+a.bytes
				require.False(t, atOnce && meet, "%+v meets %+v", a, b)
			}
		}
		require.GreaterOrEqual(t, m.Bytes, m.Live)
		if limit >= 1<<20 {
			bytes, live = bytes+m.Bytes, live+m.Live
		}
	}
	require.Less(t, float64(bytes), 1.5*float64(live))
}

// TestMemory wants the peak, its step and its holders.
func TestMemory(t *testing.T) {
	p := New("test")
	a := p.Input("a", dtype.Float32, 100)
	b, c, d := p.Tensor("b", dtype.Float32, 1000), p.Tensor("c", dtype.Float32, 500), p.Tensor("d", dtype.Float32, 1000)
	p.Step("one", []*Tensor{a}, []*Tensor{b}, nothing)
	p.Step("two", []*Tensor{b}, []*Tensor{c}, nothing)
	p.Step("three", []*Tensor{c, nil}, []*Tensor{p.Output(d), nil}, nothing)
	m, err := p.Plan(1 << 30)
	require.NoError(t, err)
	require.Equal(t, int64(6400), m.Live)
	require.Equal(t, "two", m.Step)
	require.Equal(t, []Holder{{"b", 4000}, {"c", 2000}, {"a", 400}}, m.Holders)
	require.NotEqual(t, b.offset, d.offset, "what writes d would wait for what reads b")
	require.Equal(t, "10.8 kB, the most at two: b 4.0 kB, c 2.0 kB, a 0.4 kB", m.String())

	// Small tensors share memory some steps later, large ones at once.
	for between, bytes := range map[int]int{apartSteps: 1 << 10, 0: apartBytes + 4} {
		p = New("test")
		b, d = p.Tensor("b", dtype.Float32, bytes/4), p.Tensor("d", dtype.Float32, bytes/4)
		p.Step("b", nil, []*Tensor{b}, nothing)
		for i := range between {
			p.Step(fmt.Sprint("between ", i), nil, []*Tensor{p.Tensor("c", dtype.Float32, 1)}, nothing)
		}
		p.Step("d", nil, []*Tensor{d}, nothing)
		_, err = p.Plan(1 << 30)
		require.NoError(t, err)
		require.Equal(t, b.offset, d.offset, "they are never needed at once")
	}
}

func TestErrors(t *testing.T) {
	for want, build := range map[string]func(p *Program){
		"record: step one reads x, which no step before it writes": func(p *Program) {
			p.Step("one", []*Tensor{p.Tensor("x", dtype.Float32, 1)}, nil, nothing)
		},
		"record: no step reads or writes x": func(p *Program) { p.Tensor("x", dtype.Float32, 1) },
		"record: x has shape [4 0]: it has no elements": func(p *Program) {
			p.Step("one", nil, []*Tensor{p.Tensor("x", dtype.Float32, 4, 0)}, nothing)
		},
		"record: x has 8000 bytes, more than the device's 4096 of a buffer": func(p *Program) {
			p.Step("one", nil, []*Tensor{p.Tensor("x", dtype.Float32, 2000)}, nothing)
		},
	} {
		p := New("test")
		build(p)
		_, err := p.Plan(4097)
		require.EqualError(t, err, want)
	}
	p := New("test")
	require.EqualError(t, p.Allocate(nil), "record: Allocate comes after Plan")
}

// TestLate adds steps and tensors to programs after Plan, which places the steps and tensors that
// it knows only.
func TestLate(t *testing.T) {
	d := vktest.Open(t)
	for want, add := range map[string]func(p *Program, b *Tensor){
		"step two": func(p *Program, b *Tensor) { p.Step("two", []*Tensor{b}, nil, nothing) },
		"c":        func(p *Program, b *Tensor) { p.Step("two", nil, []*Tensor{p.Tensor("c", dtype.Float32, 1)}, nothing) },
		"b":        func(p *Program, b *Tensor) { p.Output(b) },
	} {
		p := New("test")
		a, b := p.Input("a", dtype.Float32, 1), p.Tensor("b", dtype.Float32, 1)
		p.Step("one", []*Tensor{a}, []*Tensor{b}, nothing)
		_, err := p.Plan(1 << 20)
		require.NoError(t, err)
		add(p, b)
		require.EqualError(t, p.Allocate(d), "record: "+want+" came after Plan, which must know it before Allocate")
		_, err = p.Plan(1 << 20)
		require.NoError(t, err)
		require.NoError(t, p.Allocate(d))
		add(p, b)
		c, err := d.NewCmd("late")
		require.NoError(t, err)
		require.EqualError(t, p.Record(c, nil), "record: "+want+" came after Plan, which must know it before Record")
		_, err = p.Plan(1 << 20)
		require.EqualError(t, err, "record: memory is allocated already")
		c.Close()
		p.Close()
	}
}

// TestRecord runs a chain of copies whose tensors share memory, from a and from b by turns, and
// submits it twice.
func TestRecord(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	p := New("chain")
	const n = 64
	x := p.Input("x", dtype.Float32, 1, 1, n)
	at := x
	const steps = 9
	for i := range steps {
		from, to := at, p.Tensor(fmt.Sprint("t", i), dtype.Float32, 1, 1, n)
		p.Step(fmt.Sprint("copy ", i), []*Tensor{from}, []*Tensor{to}, func(c *vk.Cmd) error {
			return engine.Pad(c, to.View(), from.View())
		})
		at = to
	}
	p.Output(at)
	m, err := p.Plan(1 << 20)
	require.NoError(t, err)
	require.Equal(t, int64((1+2+apartSteps)*4*n), m.Bytes, "x, and places in turns")
	c, err := d.NewCmd("chain")
	require.NoError(t, err)
	defer c.Close()
	require.EqualError(t, p.Record(c, nil), "record: Record comes after Allocate")
	c.Reset()
	require.NoError(t, p.Allocate(d))
	defer p.Close()
	require.EqualError(t, p.Allocate(d), "record: memory is allocated already")
	var names []string
	require.NoError(t, p.Record(c, func(step string) { names = append(names, step) }))
	require.Len(t, names, steps)
	require.Equal(t, "copy 8", names[8])
	for run := range 3 {
		if run == 2 { // in the order of what needs what
			c.Reset()
			require.NoError(t, p.Record(c, nil))
		}
		want, got := make([]float32, n), make([]float32, n)
		for i := range want {
			want[i] = float32(run*1000 + i)
		}
		require.NoError(t, x.View().Upload(ctx, want))
		require.NoError(t, c.Submit(ctx))
		require.NoError(t, at.View().Download(ctx, got))
		require.Equal(t, want, got)
	}
}
