package attention

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// featureArgs are the tensors of a call with every feature.
type featureArgs struct {
	in Tensors
	p  Problem
}

// TestCheckFeatures has the message of each tensor of a feature that is missing,
// not wanted, or does not fit.
func TestCheckFeatures(t *testing.T) {
	d := vktest.Open(t)
	tensor := func(format dtype.DType, shape ...int) vk.Tensor { return vktest.Tensor(t, d, format, shape...) }
	good := featureArgs{p: Problem{
		Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, ValueDim: 16, DType: dtype.Float16,
		ALiBi: ALiBiPerBatchHead, Bias: Bias{On: true, DType: dtype.Float16, Heads: true}, KeyMask: true, Sinks: true,
		Varlen: Varlen{On: true, TotalQ: 6, TotalKV: 7},
	}}
	good.in.Q, good.in.K, good.in.V = tensor(dtype.Float16, 6, 4, 8), tensor(dtype.Float16, 7, 2, 8), tensor(dtype.Float16, 7, 2, 16)
	good.in.O, good.in.LSE = tensor(dtype.Float16, 6, 4, 16), tensor(dtype.Float32, 4, 6)
	good.in.Bias, good.in.ALiBiSlopes, good.in.Sinks = tensor(dtype.Float16, 1, 4, 1, 5), tensor(dtype.Float32, 2, 4), tensor(dtype.Float32, 4)
	good.in.KeyMask, good.in.CuSeqlensQ, good.in.CuSeqlensKV = tensor(dtype.Bool, 2, 5), tensor(dtype.Int32, 3), tensor(dtype.Int32, 3)
	for _, c := range []struct {
		change func(x *featureArgs)
		want   string
	}{
		{func(x *featureArgs) {}, ""},
		{func(x *featureArgs) { x.in.LSE = vk.Tensor{} }, ""},
		{func(x *featureArgs) { x.in.Bias.Strides = []int{99, 0, 0, 1} }, ""}, // inputs may share memory
		{func(x *featureArgs) { x.in.Bias = vk.Tensor{} }, "attention: bias has no buffer"},
		{func(x *featureArgs) { x.p.Bias = Bias{} }, "attention: bias is given, but the problem has none"},
		{func(x *featureArgs) { x.p.Bias.DType = dtype.Float32 }, "attention: bias is float16, want float32"},
		{func(x *featureArgs) { x.p.Bias.Rows = true }, "attention: bias has shape [1 4 1 5] and strides [20 5 5 1], want shape [1 4 3 5]"},
		{func(x *featureArgs) { x.p.ALiBi = ALiBiPerHead }, "attention: alibi_slopes has shape [2 4] and strides [4 1], want shape [4]"},
		{func(x *featureArgs) { x.p.ALiBi = ALiBiOff }, "attention: alibi_slopes is given, but the problem has none"},
		{func(x *featureArgs) { x.in.Sinks.DType = dtype.Float16 }, "attention: sinks is float16, want float32"},
		{func(x *featureArgs) { x.p.Sinks = false }, "attention: sinks is given, but the problem has none"},
		{func(x *featureArgs) { x.in.KeyMask.DType = dtype.Float32 }, "attention: key_mask is float32, want bool"},
		{func(x *featureArgs) { x.p.KeyMask = false }, "attention: key_mask is given, but the problem has none"},
		{func(x *featureArgs) { x.in.CuSeqlensKV = vk.Tensor{} }, "attention: cu_seqlens_kv has no buffer"},
		{func(x *featureArgs) { x.p.Batch = 3 }, "attention: alibi_slopes has shape [2 4] and strides [4 1], want shape [3 4]"},
		{func(x *featureArgs) { x.in.CuSeqlensQ.Strides = []int{2} }, "attention: cu_seqlens_q has strides [2]: the last axis is not contiguous"},
		{func(x *featureArgs) { x.p.ValueDim = 8 }, "attention: v has shape [7 2 16] and strides [32 16 1], want shape [7 2 8]: (total_kv, num_kv_heads, value_dim)"},
		{func(x *featureArgs) { x.p.Varlen = Varlen{} }, "attention: q has shape [6 4 8] and strides [32 8 1], want shape [2 4 3 8]: (batch, num_heads, seq_q, head_dim)"},
		{func(x *featureArgs) { x.in.LSE.Shape, x.in.LSE.Strides = []int{6, 4}, []int{4, 1} }, "attention: lse has shape [6 4] and strides [4 1], want shape [4 6]: (num_heads, total_q)"},
		{func(x *featureArgs) { x.in.Sinks = x.in.LSE; x.in.Sinks.Shape, x.in.Sinks.Strides = []int{4}, []int{1} }, "attention: lse overlaps sinks: outputs need memory of their own"},
	} {
		x := good
		c.change(&x)
		err := checkForward(&x.in, x.p)
		if c.want == "" {
			require.NoError(t, err)
			continue
		}
		require.EqualError(t, err, c.want)
	}
}

// TestHostTensors: lengths and masks reach the device as bytes, biases in their
// format.
func TestHostTensors(t *testing.T) {
	d := vktest.Open(t)
	for _, c := range []struct {
		x    hostTensor
		want []byte
	}{
		{bools("m", true, []bool{true, false, true}, []int{1, 3}), []byte{1, 0, 1}},
		{lengths("n", true, []int32{0, 258}, []int{2}), []byte{0, 0, 0, 0, 2, 1, 0, 0}},
		{floats("b", true, []float32{1, -2}, dtype.Float16, []int{1, 1, 1, 2}), []byte{0, 0x3c, 0, 0xc0}},
	} {
		require.NoError(t, c.x.check())
		require.NoError(t, c.x.allocate(d))
		require.NoError(t, c.x.upload(context.Background()))
		got := make([]byte, len(c.want))
		require.NoError(t, c.x.tensor.DownloadRaw(context.Background(), got))
		require.Equal(t, c.want, got)
		require.Equal(t, c.x.shape, c.x.tensor.Shape)
		c.x.tensor.Close()
		c.x.shape = append(c.x.shape, 9)
		require.ErrorContains(t, c.x.check(), "attention: len("+c.x.name+")=")
	}
}
