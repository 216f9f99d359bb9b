package tests

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
)

// block is a residual block: y = x + mlp(norm(x)), and its gradients.
type block struct {
	norm norm.Problem
	mlp  mlp.Problem
	nt   norm.Tensors
	ng   norm.Gradients
	mt   mlp.Tensors
	mg   mlp.Gradients
}

// tensors lists the tensors of the block with their names and shapes.
func (b *block) tensors() (list []*vk.Tensor, shapes [][]int) {
	rows, row := []int{b.norm.Rows, b.norm.Cols}, []int{b.norm.Rows}
	add := func(t *vk.Tensor, shape []int) { list, shapes = append(list, t), append(shapes, shape) }
	add(&b.nt.X, rows)
	add(&b.nt.W, []int{b.norm.Cols})
	add(&b.nt.Y, rows)
	add(&b.nt.Mean, row)
	add(&b.nt.RStd, row)
	add(&b.ng.DX, rows)
	add(&b.ng.DW, []int{b.norm.Cols})
	add(&b.mt.W1, b.mlp.W1Shape())
	add(&b.mt.W2, b.mlp.W2Shape())
	add(&b.mt.Y, b.mlp.YShape())
	add(&b.mg.DY, b.mlp.YShape())
	add(&b.mg.DX, b.mlp.XShape())
	add(&b.mg.DW1, b.mlp.W1Shape())
	add(&b.mg.DW2, b.mlp.W2Shape())
	return list, shapes
}

// place puts the tensors into one buffer, from a byte on, and connects them.
func (b *block) place(memory *vk.Buffer, at int64) (end int64) {
	list, shapes := b.tensors()
	for i, t := range list {
		*t = vk.View(memory, dtype.Float32, shapes[i]...)
		t.Offset = int(at / 4)
		at += (4*int64(t.NumElements()) + 255) &^ 255
	}
	b.mt.X, b.ng.DY = b.nt.Y, b.mg.DX
	return at
}

// record records both passes. Call gets each as a function.
func (b *block) record(call func(func(c *vk.Cmd) error) error) error {
	for _, f := range []func(c *vk.Cmd) error{
		func(c *vk.Cmd) error { return norm.Forward(c, b.nt, b.norm, norm.Options{}) },
		func(c *vk.Cmd) error { return mlp.Forward(c, b.mt, b.mlp, mlp.Options{}) },
		func(c *vk.Cmd) error { return mlp.Backward(c, b.mt, b.mg, b.mlp, mlp.Options{}) },
		func(c *vk.Cmd) error { return norm.Backward(c, b.nt, b.ng, b.norm, norm.Options{}) },
	} {
		if err := call(f); err != nil {
			return err
		}
	}
	return nil
}

// inTurns records the calls of blocks in turns.
func inTurns(c *vk.Cmd, blocks []block) error {
	var turns [][]func(c *vk.Cmd) error
	for i := range blocks {
		turn := 0
		err := blocks[i].record(func(f func(c *vk.Cmd) error) error {
			if turn == len(turns) {
				turns = append(turns, nil)
			}
			turns[turn] = append(turns[turn], f)
			turn++
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, f := range slices.Concat(turns...) {
		if err := f(c); err != nil {
			return err
		}
	}
	return nil
}

// TestOneRecording records both passes of two independent blocks into one Cmd, with all tensors in
// one buffer. It wants the same bits as with one submission for each call, no message of the
// validation layer, shared barriers if calls of the blocks alternate, and as much memory as was
// measured before.
func TestOneRecording(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	blocks := make([]block, 2)
	p := norm.Problem{Rows: 37, Cols: 24, DType: dtype.Float32, WeightDType: dtype.Float32, Eps: 1e-5}
	m := mlp.Problem{Tokens: 37, In: 24, Hidden: 20, Out: 24, DType: dtype.Float32}
	size := int64(0)
	place := func(memory *vk.Buffer) {
		size = 0
		for i := range blocks {
			blocks[i].norm, blocks[i].mlp = p, m
			size = blocks[i].place(memory, size)
		}
	}
	place(nil)
	both := func(c *vk.Cmd) error { return inTurns(c, blocks) }
	place(d.Placeholder("all", size))
	bytes, err := d.Measure(both)
	require.NoError(t, err)
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
	for i := range blocks {
		require.NoError(t, blocks[i].record(func(f func(c *vk.Cmd) error) error {
			c.Reset()
			if err := f(c); err != nil {
				return err
			}
			return c.Submit(ctx)
		}))
	}
	want := results()
	one := count(func(c *vk.Cmd) error {
		return blocks[0].record(func(f func(c *vk.Cmd) error) error { return f(c) })
	})

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
