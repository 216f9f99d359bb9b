package attention_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// numbers converts the numbers of an input.
func numbers[T float32 | int32](x []float64) []T {
	if x == nil {
		return nil
	}
	y := make([]T, len(x))
	for i, v := range x {
		y[i] = T(v)
	}
	return y
}

// hostTensors returns the slices of a call, the outputs full of NaN.
func hostTensors(a *call.Attention, x call.Values) attention.HostTensors {
	nan := func(shape []int) []float32 { return slices.Repeat([]float32{float32(math.NaN())}, call.Product(shape)) }
	t := attention.HostTensors{O: nan(a.OShape()), LSE: nan(a.LSEShape()), CuSeqlensQ: numbers[int32](x["cu_seqlens_q"]), CuSeqlensKV: numbers[int32](x["cu_seqlens_kv"])}
	floats := map[string][]float32{}
	for name, values := range x {
		floats[name] = numbers[float32](values)
	}
	call.Bind(floats, &t)
	for _, v := range x["key_mask"] {
		t.KeyMask = append(t.KeyMask, v != 0)
	}
	return t
}

// hostCalls are of every format, where some rows see no key, and with all features at once, packed and
// not.
func hostCalls() (list []*call.Attention) {
	for _, format := range dtype.All() {
		list = append(list, &call.Attention{Problem: attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 8, SeqKV: 5, HeadDim: 8, DType: format, Causal: true}})
	}
	all := call.Attention{Problem: attention.Problem{
		Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, ValueDim: 16, DType: dtype.Float16, Causal: true,
		Window: attention.Window{On: true, Left: 3}, Softcap: 4, ALiBi: attention.ALiBiPerHead, Bias: attention.Bias{On: true, Rows: true},
		KeyMask: true, Sinks: true, Dropout: attention.Dropout{P: 0.25, Seeded: true, Seed: 3},
	}}
	packed := all
	packed.Varlen.On, packed.Lengths, packed.Slack = true, [][2]int{{3, 2}, {2, 5}}, 1 // row 5 is in no sequence
	packed.Pack()
	return append(list, &all, &packed)
}

// TestForwardHost compares O and LSE with the reference, alone and from several goroutines. Without
// LSE and in the memory of Q, O is the same.
func TestForwardHost(t *testing.T) {
	d := vktest.Open(t)
	t.Run("", func(t *testing.T) {
		for i, a := range hostCalls() {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				inputs := call.Inputs(a)
				want, x := a.Want(inputs, kit.Forward), hostTensors(a, inputs)
				require.NoError(t, attention.ForwardHost(t.Context(), d, x, a.Problem, attention.Options{}))
				rows := map[string]int{"o": len(x.O), "lse": len(x.LSE)}
				if a.Slack > 0 {
					rows = map[string]int{"o": len(x.O) / 6 * 5, "lse": 5} // of the first head
				}
				for name, got := range map[string][]float32{"o": x.O, "lse": x.LSE} {
					for i, w := range want[name].Want[:rows[name]] {
						require.True(t, w == float64(got[i]) || math.Abs(w-float64(got[i])) <= want[name].Bounds[i], "%s[%d] = %v, want %v", name, i, got[i], w)
					}
				}
				o := x.O
				if x.O, x.LSE = slices.Clone(o), nil; a.ValueDim == 0 {
					x.O = x.Q
				}
				require.NoError(t, attention.ForwardHost(t.Context(), d, x, a.Problem, attention.Options{}))
				require.Equal(t, o[:rows["o"]], x.O[:rows["o"]])
			})
		}
	})
}

// TestForwardHostErrors has the message of each mistake. The device's Close fails the test if one of
// them leaves something open.
func TestForwardHostErrors(t *testing.T) {
	d := vktest.Open(t)
	type args struct {
		attention.HostTensors
		p   attention.Problem
		opt attention.Options
	}
	a := &call.Attention{Problem: attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float16}}
	inputs := call.Inputs(a)
	for _, c := range []struct {
		change func(x *args)
		want   string
	}{
		{func(x *args) { x.O = nil }, "len(o)=0 is not 192, of shape [2 4 3 8]"},
		{func(x *args) { x.LSE = x.LSE[1:] }, "len(lse)=23 is not 24, of shape [2 4 3]"},
		{func(x *args) { x.LSE = x.LSE[:0] }, "len(lse)=0 is not 24, of shape [2 4 3]"},
		{func(x *args) { x.Q = x.Q[:5] }, "len(q)=5 is not 192, of shape [2 4 3 8]"},
		{func(x *args) { x.K = append(x.K, 1) }, "len(k)=161 is not 160, of shape [2 2 5 8]"},
		{func(x *args) { x.V = nil }, "len(v)=0 is not 160, of shape [2 2 5 8]"},
		{func(x *args) { x.Sinks = make([]float32, 4) }, "sinks is given, but the problem has none"},
		{func(x *args) { x.KeyMask = make([]bool, 4) }, "key_mask is given, but the problem has none"},
		{func(x *args) { x.CuSeqlensKV = make([]int32, 4) }, "cu_seqlens_kv is given, but the problem has none"},
		{func(x *args) { x.p.SeqKV = 0 }, "seq_kv=0 is not positive"},
		{func(x *args) { x.opt.Impl = 9 }, "impl Impl(9) is not a path: unsupported on this device"},
	} {
		x := args{hostTensors(a, inputs), a.Problem, attention.Options{}}
		c.change(&x)
		require.EqualError(t, attention.ForwardHost(t.Context(), d, x.HostTensors, x.p, x.opt), "attention: "+c.want)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, attention.ForwardHost(ctx, d, hostTensors(a, inputs), a.Problem, attention.Options{}), context.Canceled)

	// Running out of memory at any tensor is an error that names it.
	d = vktest.Open(t)
	for n, name := range []string{"q", "k", "v", "o", "lse"} {
		d.Caps().MaxAllocations = uint32(n)
		err := attention.ForwardHost(t.Context(), d, hostTensors(a, inputs), a.Problem, attention.Options{})
		require.ErrorIs(t, err, vk.ErrOutOfDeviceMemory)
		require.ErrorContains(t, err, fmt.Sprintf("%q", "attention."+name))
	}
}

// TestDowncast says how far O of float32 slices is from the reference, relative L1 norm, where the format of the
// problem rounds them: what 16-bit products of float32 numbers cost.
func TestDowncast(t *testing.T) {
	d := vktest.Open(t)
	a := &call.Attention{Problem: attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 64, SeqKV: 300, HeadDim: 32, DType: dtype.Float32}}
	inputs := call.Inputs(a)
	want := a.Want(inputs, kit.Forward)["o"].Want
	for format, most := range map[dtype.DType]float64{dtype.Float32: 2e-6, dtype.Float16: 6e-4, dtype.BFloat16: 5e-3} {
		t.Run(format.String(), func(t *testing.T) {
			p, x := a.Problem, hostTensors(a, inputs)
			p.DType = format
			require.NoError(t, attention.ForwardHost(t.Context(), d, x, p, attention.Options{}))
			off, size := 0.0, 0.0
			for i, y := range want {
				off, size = off+math.Abs(float64(x.O[i])-y), size+math.Abs(y)
			}
			t.Logf("%.2g", off/size)
			require.Less(t, off/size, most)
		})
	}
}
