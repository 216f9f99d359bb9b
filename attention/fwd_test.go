package attention_test

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// tensorArgs are the tensors of one call.
type tensorArgs struct{ o, lse, q, k, v vk.Tensor }

// TestForwardErrors has the message of each argument that does not fit.
func TestForwardErrors(t *testing.T) {
	d, other := vktest.Open(t), vktest.Open(t)
	p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float16}
	var good, foreign tensorArgs
	good.o, good.lse, good.q, good.k, good.v = newTensors(t, d, p)
	foreign.o, foreign.lse, foreign.q, foreign.k, foreign.v = newTensors(t, other, p)
	closed, err := d.NewTensor("closed", p.DType, good.q.Shape...)
	require.NoError(t, err)
	closed.Close()
	large, err := d.NewBuffer("large", 1<<16)
	require.NoError(t, err)
	defer large.Close()
	shared := vk.View(large, p.DType, good.q.Shape...)
	view := func(offset int, strides ...int) vk.Tensor {
		v := shared
		v.Offset, v.Strides = offset, strides
		return v
	}
	for _, c := range []struct {
		change func(x *tensorArgs)
		want   string
	}{
		{func(x *tensorArgs) { x.q = vk.Tensor{} }, "attention: q has no buffer"},
		{func(x *tensorArgs) { x.o = vk.Tensor{} }, "attention: o has no buffer"},
		{func(x *tensorArgs) { x.k.DType = dtype.BFloat16 }, "attention: k is bfloat16, want float16"},
		{func(x *tensorArgs) { x.lse.DType = dtype.Float16 }, "attention: lse is float16, want float32"},
		{func(x *tensorArgs) { x.v = x.q }, "attention: v has shape [2 4 3 8] and strides [96 24 8 1], want shape [2 2 5 8]: (batch, num_kv_heads, seq_kv, value_dim)"},
		{func(x *tensorArgs) { x.q = x.q.Permute(0, 2, 1, 3) }, "attention: q has shape [2 3 4 8] and strides [96 8 24 1], want shape [2 4 3 8]: (batch, num_heads, seq_q, head_dim); Tensor.Permute(0, 2, 1, 3) is a view with these axes"},
		{func(x *tensorArgs) { x.lse = x.o }, "attention: lse is float16, want float32"},
		{func(x *tensorArgs) { x.q.Shape = x.q.Shape[1:] }, "attention: q has shape [4 3 8] and strides [96 24 8 1], want shape [2 4 3 8]: (batch, num_heads, seq_q, head_dim)"},
		{func(x *tensorArgs) { x.q.Strides = nil }, "attention: q has shape [2 4 3 8] and strides [], want shape [2 4 3 8]: (batch, num_heads, seq_q, head_dim)"},
		{func(x *tensorArgs) { x.q = view(0, 400, 100, 20, 2) }, "attention: q has strides [400 100 20 2]: the last axis is not contiguous"},
		{func(x *tensorArgs) { x.q.Strides = []int{96, -24, 8, 1} }, "attention: q: vk: tensor on \"q\": shape [2 4 3 8] must be positive, strides [96 -24 8 1] not negative"},
		{func(x *tensorArgs) { x.q.Offset = 1 }, "attention: q: vk: tensor with shape [2 4 3 8], strides [96 24 8 1], offset 1 of float16 is outside buffer \"q\" of 384 bytes"},
		{func(x *tensorArgs) { x.k.Offset = -1 }, "attention: k: vk: tensor on \"k\": offset -1 is negative"},
		{func(x *tensorArgs) { x.q.Strides = []int{math.MaxInt64 / 2, 24, 8, 1} }, "is outside buffer"},
		{func(x *tensorArgs) { x.q = closed }, "attention: q: vk: tensor: the buffer is closed or was never made"},
		{func(x *tensorArgs) { x.v = foreign.v }, "is of another device"},
		{func(x *tensorArgs) { x.o = x.q }, "attention: o overlaps q: outputs need memory of their own"},
		{func(x *tensorArgs) { x.o, x.q = view(0, 96, 24, 8, 1), view(191, 96, 24, 8, 1) }, "attention: o overlaps q: outputs need memory of their own"},
		{func(x *tensorArgs) { x.o, x.q = view(0, 96, 24, 8, 1), view(192, 96, 24, 8, 1) }, ""},
		{func(x *tensorArgs) { x.o = view(0, 96, 0, 8, 1) }, "attention: o has strides [96 0 8 1] for shape [2 4 3 8]: elements of an output may not share memory"},
		{func(x *tensorArgs) { x.o = view(0, 96, 24, 7, 1) }, "attention: o has strides [96 24 7 1] for shape [2 4 3 8]: elements of an output may not share memory"},
		{func(x *tensorArgs) { x.q = view(0, 0, 0, 0, 1) }, ""}, // inputs may
		{func(x *tensorArgs) { x.lse = vk.View(large, dtype.Float32, 2, 4, 3); x.o = view(47, 96, 24, 8, 1) }, "attention: lse overlaps o: outputs need memory of their own"},
		{func(x *tensorArgs) { x.lse = vk.Tensor{} }, ""},
		{func(x *tensorArgs) {}, ""},
	} {
		x := good
		c.change(&x)
		cmd, err := d.NewCmd("errors")
		require.NoError(t, err)
		err = attention.Forward(cmd, attention.Tensors{O: x.o, LSE: x.lse, Q: x.q, K: x.k, V: x.v}, p, attention.Options{})
		switch {
		case c.want == "":
			require.NoError(t, err)
			require.NoError(t, cmd.Submit(context.Background()))
		case strings.HasPrefix(c.want, "attention:"):
			require.EqualError(t, err, c.want)
		default:
			require.ErrorContains(t, err, c.want)
		}
		cmd.Close()
	}
}

// TestForwardProblemErrors says that a wrong problem is refused before tensors
// are looked at.
func TestForwardProblemErrors(t *testing.T) {
	d := vktest.Open(t)
	c, err := d.NewCmd("errors")
	require.NoError(t, err)
	defer c.Close()
	p := attention.Problem{Batch: 1, NumHeads: 6, NumKVHeads: 4, SeqQ: 3, SeqKV: 5, HeadDim: 8}
	require.EqualError(t, attention.Forward(c, attention.Tensors{}, p, attention.Options{}),
		"attention: num_heads=6 is not a multiple of num_kv_heads=4")
	p.NumHeads, p.HeadDim = 4, 20
	require.EqualError(t, attention.Forward(c, attention.Tensors{}, p, attention.Options{Impl: attention.Scalar}),
		"attention: head_dim=20 is not a multiple of 8")
	p.HeadDim = 8
	err = attention.Forward(c, attention.Tensors{}, p, attention.Options{Config: &attention.Config{}})
	require.ErrorContains(t, err, "attention: impl auto is not a path")
}
