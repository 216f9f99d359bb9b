package attention_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// hostArgs are the slices of one call, the outputs full of NaN.
type hostArgs struct {
	o, lse, q, k, v []float32
	in              attention.HostTensors // of features
}

// newHostArgs returns slices for p with numbers that p.DType stores exactly.
func newHostArgs(p attention.Problem) hostArgs {
	values := func(shape []int) []float32 {
		n := 1
		for _, s := range shape {
			n *= s
		}
		return make([]float32, n)
	}
	x := hostArgs{o: values(p.OShape()), lse: values(p.LSEShape()), q: values(p.QShape()), k: values(p.KShape()), v: values(p.VShape())}
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
	t := x.in
	t.O, t.LSE, t.Q, t.K, t.V = x.o, x.lse, x.q, x.k, x.v
	return attention.ForwardHost(ctx, d, t, p, opt)
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

// TestForwardHostFeatures calls with all features at once, packed and not, where
// the device has kernels for them.
func TestForwardHostFeatures(t *testing.T) {
	d := vktest.Open(t)
	p := attention.Problem{
		Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, ValueDim: 16, DType: dtype.Float16, Causal: true,
		Window: attention.Window{On: true, Left: 3}, Softcap: 4, ALiBi: attention.ALiBiPerHead, Bias: attention.Bias{On: true, Rows: true},
		KeyMask: true, Sinks: true, Dropout: attention.Dropout{P: 0.25, Seeded: true, Seed: 3},
	}
	for _, varlen := range []attention.Varlen{{}, {On: true, TotalQ: 6, TotalKV: 8}} {
		p.Varlen = varlen
		if err := attention.Supports(d.Caps(), p, kit.Forward, attention.Options{Impl: attention.Auto}); err != nil {
			t.Skip(err)
		}
		x := newHostArgs(p)
		host := attention.HostTensors{
			Bias: make([]float32, 15), ALiBiSlopes: []float32{0.5, 0.25, 0.125, 0}, Sinks: []float32{0, 1, -1, 2},
			KeyMask: []bool{true, true, false, true, true, true, false, true, true, true},
		}
		for i := range host.Bias {
			host.Bias[i] = float32(i%4) / 4
		}
		if varlen.On {
			host.CuSeqlensQ, host.CuSeqlensKV = []int32{0, 3, 5}, []int32{0, 2, 7} // row 5 is in no sequence
			copy(x.o[5*4*16:], make([]float32, 4*16))
			for h := range 4 {
				x.lse[h*6+5] = 0
			}
		}
		x.in = host
		require.NoError(t, x.forward(context.Background(), d, p, attention.Options{}))
		o, lse := make([]float64, len(x.o)), make([]float64, len(x.lse))
		require.NoError(t, ref.Forward(o, lse, ref.Inputs[float32]{
			Q: x.q, K: x.k, V: x.v, Bias: host.Bias, ALiBiSlopes: host.ALiBiSlopes, Sinks: host.Sinks,
			KeyMask: host.KeyMask, CuSeqlensQ: host.CuSeqlensQ, CuSeqlensKV: host.CuSeqlensKV,
		}, p))
		for i, want := range o {
			require.InDelta(t, want, x.o[i], 0.01, "varlen %v: o[%d]", varlen, i)
		}
		for i, want := range lse {
			require.InDelta(t, want, x.lse[i], 1e-4, "varlen %v: lse[%d]", varlen, i)
		}
	}
}

// TestForwardHostErrors has the message of each mistake. The device's Close fails the test if one of
// them leaves something open.
func TestForwardHostErrors(t *testing.T) {
	d := vktest.Open(t)
	type args struct {
		hostArgs
		p   attention.Problem
		opt attention.Options
	}
	for _, c := range []struct {
		change func(x *args)
		want   string
	}{
		{func(x *args) { x.o = nil }, "len(o)=0 is not 192, of shape [2 4 3 8]"},
		{func(x *args) { x.lse = x.lse[1:] }, "len(lse)=23 is not 24, of shape [2 4 3]"},
		{func(x *args) { x.lse = x.lse[:0] }, "len(lse)=0 is not 24, of shape [2 4 3]"},
		{func(x *args) { x.q = x.q[:5] }, "len(q)=5 is not 192, of shape [2 4 3 8]"},
		{func(x *args) { x.k = append(x.k, 1) }, "len(k)=161 is not 160, of shape [2 2 5 8]"},
		{func(x *args) { x.v = nil }, "len(v)=0 is not 160, of shape [2 2 5 8]"},
		{func(x *args) { x.in.Sinks = make([]float32, 4) }, "sinks is given, but the problem has none"},
		{func(x *args) { x.in.KeyMask = make([]bool, 4) }, "key_mask is given, but the problem has none"},
		{func(x *args) { x.in.CuSeqlensKV = make([]int32, 4) }, "cu_seqlens_kv is given, but the problem has none"},
		{func(x *args) { x.p.SeqKV = 0 }, "seq_kv=0 is not positive"},
		{func(x *args) { x.opt.Impl = 9 }, "impl Impl(9) is not a path: unsupported on this device"},
	} {
		x := args{p: attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float16}}
		x.hostArgs = newHostArgs(x.p)
		c.change(&x)
		require.EqualError(t, x.forward(t.Context(), d, x.p, x.opt), "attention: "+c.want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 3, SeqKV: 5, HeadDim: 8}
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
