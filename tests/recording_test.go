package tests

import (
	"cmp"
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A part is a call of a residual block: y = x + mlp(norm(x)), and its gradients.
type part struct {
	call.Call
	pass  kit.Pass
	names map[string]string // of the block's tensors, where they are others
}

// parts are the calls of a block, in their order.
func parts() []part {
	n := &call.Norm{Problem: norm.Problem{Rows: 37, Cols: 24, DType: dtype.Float32, WeightDType: dtype.Float32, Eps: 1e-5}, Save: true}
	m := &call.MLP{Problem: mlp.Problem{Tokens: 37, In: 24, Hidden: 20, Out: 24, DType: dtype.Float32}}
	of := map[string]string{"x": "y", "y": "z", "dy": "dz", "dx": "dy"}
	return []part{{n, kit.Forward, nil}, {m, kit.Forward, of}, {m, kit.Backward, of}, {n, kit.Backward, nil}}
}

// A block has the tensors of a block, by name.
type block map[string]vk.Tensor

// place puts the tensors into one buffer, from a byte on.
func (b block) place(memory *vk.Buffer, at int64) (end int64) {
	clear(b)
	for _, p := range parts() {
		for _, of := range p.Tensors() {
			name := cmp.Or(p.names[of.Name], of.Name)
			if _, placed := b[name]; placed || of.Off {
				continue
			}
			t := vk.View(memory, dtype.Float32, of.Shape...)
			t.Offset = int(at / 4)
			at += (4*int64(t.NumElements()) + 255) &^ 255
			b[name] = t
		}
	}
	return at
}

// record records a call.
func (b block) record(c *vk.Cmd, p part) error {
	t := map[string]vk.Tensor{}
	for _, of := range p.Tensors() {
		if !of.Off {
			t[of.Name] = b[cmp.Or(p.names[of.Name], of.Name)]
		}
	}
	return p.Host().Bind(t, nil, p.pass)(c)
}

// inTurns records the calls of blocks in turns.
func inTurns(c *vk.Cmd, blocks ...block) error {
	for _, p := range parts() {
		for _, b := range blocks {
			if err := b.record(c, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestOneRecording records both passes of two independent blocks into one Cmd, with all tensors in
// one buffer. It wants the same bits as with one submission for each call, no message of the
// validation layer, shared barriers if calls of the blocks alternate, and at least as much memory
// as was measured before.
func TestOneRecording(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	blocks := []block{{}, {}}
	size := int64(0)
	place := func(memory *vk.Buffer) {
		size = 0
		for _, b := range blocks {
			size = b.place(memory, size)
		}
	}
	place(nil)
	both := func(c *vk.Cmd) error { return inTurns(c, blocks...) }
	place(d.Placeholder("all", size))
	bytes, err := d.Measure(both)
	require.NoError(t, err)
	require.Positive(t, bytes)
	memory, err := d.NewBuffer("all", size)
	require.NoError(t, err)
	defer memory.Close()
	place(memory)
	data := make([]float32, size/4)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range data {
		data[i] = float32(rng.NormFloat64())
	}
	whole := vk.View(memory, dtype.Float32, len(data))
	results := func() []float32 {
		got := make([]float32, len(data))
		require.NoError(t, whole.Download(ctx, got))
		return got
	}
	c, err := d.NewCmd("step")
	require.NoError(t, err)
	defer c.Close()
	count := func(record func(c *vk.Cmd) error) int {
		c.Reset()
		require.NoError(t, record(c))
		return c.Barriers()
	}

	require.NoError(t, whole.Upload(ctx, data))
	for _, b := range blocks {
		for _, p := range parts() {
			c.Reset()
			require.NoError(t, b.record(c, p))
			require.NoError(t, c.Submit(ctx))
		}
	}
	want := results()
	one := count(func(c *vk.Cmd) error { return inTurns(c, blocks[0]) })

	c.Close()
	c, err = d.NewCmd("step")
	require.NoError(t, err)
	defer c.Close()
	before := d.Memory().Bytes
	two := count(both)
	require.Equal(t, two, count(both)) // with the memory in one piece
	require.GreaterOrEqual(t, d.Memory().Bytes-before, bytes)
	for range 2 { // and a replay
		require.NoError(t, whole.Upload(ctx, data))
		require.NoError(t, c.Submit(ctx))
		require.Equal(t, want, results())
	}
	require.Less(t, two, 2*one)
}
