package attention_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/attention/ref"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

// hostArgs are the slices of one call, the outputs full of NaN.
type hostArgs struct{ o, lse, q, k, v []float32 }

// newHostArgs returns slices for p with numbers that p.DType stores exactly.
func newHostArgs(p attention.Problem) hostArgs {
	query, key := p.Batch*p.NumHeads*p.SeqQ, p.Batch*p.NumKVHeads*p.SeqKV
	x := hostArgs{
		o: make([]float32, query*p.HeadDim), lse: make([]float32, query), q: make([]float32, query*p.HeadDim),
		k: make([]float32, key*p.HeadDim), v: make([]float32, key*p.HeadDim),
	}
	for n, s := range [][]float32{x.q, x.k, x.v} {
		for i := range s {
			s[i] = float32((i*(7+4*n)+n)%31-15) / 8
		}
	}
	for _, s := range [][]float32{x.o, x.lse} {
		for i := range s {
			s[i] = float32(math.NaN())
		}
	}
	return x
}

func (x *hostArgs) forward(ctx context.Context, d *vk.Device, p attention.Problem, opt attention.Options) error {
	return attention.ForwardHost(ctx, d, x.o, x.lse, x.q, x.k, x.v, p, opt)
}

// requireRight compares the outputs with the reference.
func (x *hostArgs) requireRight(t *testing.T, p attention.Problem) {
	t.Helper()
	o, lse := make([]float64, len(x.o)), make([]float64, len(x.q)/p.HeadDim)
	require.NoError(t, ref.Forward(o, lse, ref.Inputs[float32]{Q: x.q, K: x.k, V: x.v}, p))
	for i, want := range o {
		// O is a mean of numbers up to 2, rounded twice: P and O.
		require.InDelta(t, want, x.o[i], 4*2*p.DType.Eps(), "o[%d]", i)
	}
	for i := range x.lse {
		if math.IsInf(lse[i], -1) {
			require.Equal(t, lse[i], float64(x.lse[i]), "lse[%d]", i)
			continue
		}
		require.InDelta(t, lse[i], x.lse[i], 1e-4, "lse[%d]", i)
	}
}

func TestForwardHost(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	for _, format := range dtype.All() {
		// Rows 0 to 2 see no key.
		p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 8, SeqKV: 5, HeadDim: 8, DType: format, Causal: true}
		x := newHostArgs(p)
		require.NoError(t, x.forward(ctx, d, p, attention.Options{}))
		x.requireRight(t, p)

		without := newHostArgs(p)
		without.lse = nil
		require.NoError(t, without.forward(ctx, d, p, attention.Options{}))
		require.Equal(t, x.o, without.o, "without lse")

		inPlace := newHostArgs(p)
		inPlace.o = inPlace.q
		require.NoError(t, inPlace.forward(ctx, d, p, attention.Options{}))
		require.Equal(t, x.o, inPlace.o, "o is q")
	}
}

// TestForwardHostErrors has the message of each mistake. The device's Close
// fails the test if one of them leaves something open.
func TestForwardHostErrors(t *testing.T) {
	d := vktest.Open(t)
	p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float16}
	for _, c := range []struct {
		change func(x *hostArgs, p *attention.Problem, opt *attention.Options)
		want   string
	}{
		{func(x *hostArgs, _ *attention.Problem, _ *attention.Options) { x.o = nil }, "attention: len(o)=0 is not batch*num_heads*seq_q*head_dim=192"},
		{func(x *hostArgs, _ *attention.Problem, _ *attention.Options) { x.lse = x.lse[1:] }, "attention: len(lse)=23 is not batch*num_heads*seq_q=24"},
		{func(x *hostArgs, _ *attention.Problem, _ *attention.Options) { x.lse = x.lse[:0] }, "attention: len(lse)=0 is not batch*num_heads*seq_q=24"},
		{func(x *hostArgs, _ *attention.Problem, _ *attention.Options) { x.q = x.q[:5] }, "attention: len(q)=5 is not batch*num_heads*seq_q*head_dim=192"},
		{func(x *hostArgs, _ *attention.Problem, _ *attention.Options) { x.k = append(x.k, 1) }, "attention: len(k)=161 is not batch*num_kv_heads*seq_kv*head_dim=160"},
		{func(x *hostArgs, _ *attention.Problem, _ *attention.Options) { x.v = nil }, "attention: len(v)=0 is not batch*num_kv_heads*seq_kv*head_dim=160"},
		{func(_ *hostArgs, p *attention.Problem, _ *attention.Options) { p.SeqKV = 0 }, "attention: seq_kv=0 is not positive"},
		{func(_ *hostArgs, _ *attention.Problem, o *attention.Options) { o.Impl = 9 }, "attention: impl Impl(9) is not a path: unsupported on this device"},
	} {
		x, p, opt := newHostArgs(p), p, attention.Options{}
		c.change(&x, &p, &opt)
		require.EqualError(t, x.forward(context.Background(), d, p, opt), c.want)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	x := newHostArgs(p)
	require.ErrorIs(t, x.forward(ctx, d, p, attention.Options{}), context.Canceled)
}

// TestForwardHostMemory says that running out of memory at any tensor is an
// error that names it, and leaves nothing behind.
func TestForwardHostMemory(t *testing.T) {
	d := vktest.Open(t)
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float32}
	most := d.Caps().MaxAllocations
	for n, name := range []string{"o", "lse", "q", "k", "v"} {
		d.Caps().MaxAllocations = uint32(n)
		x := newHostArgs(p)
		err := x.forward(context.Background(), d, p, attention.Options{})
		require.ErrorIs(t, err, vk.ErrOutOfDeviceMemory)
		require.ErrorContains(t, err, fmt.Sprintf("%q", "attention."+name))
	}
	d.Caps().MaxAllocations = most
	x := newHostArgs(p)
	require.NoError(t, x.forward(context.Background(), d, p, attention.Options{}))
	x.requireRight(t, p)
}

// TestForwardHostConcurrently calls from several goroutines.
func TestForwardHostConcurrently(t *testing.T) {
	d := vktest.Open(t)
	t.Run("", func(t *testing.T) {
		for i := range 4 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 3 + i, SeqKV: 9, HeadDim: 8, DType: dtype.Float16}
				for range 3 {
					x := newHostArgs(p)
					require.NoError(t, x.forward(context.Background(), d, p, attention.Options{}))
					x.requireRight(t, p)
				}
			})
		}
	})
}
