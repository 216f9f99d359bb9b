package grouped_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/pipelines/grouped"
	"github.com/flashvk/flashvk/pipelines/grouped/ref"
	"github.com/flashvk/flashvk/pipelines/kerneltest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

// inputs are random; weights are small, so that pre is about 1.
func inputs(p grouped.Problem) ref.Inputs {
	rng := rand.New(rand.NewPCG(uint64(p.Tokens), uint64(p.Hidden)))
	random := func(n int, scale float64) []float64 { return kerneltest.Random(rng, p.DType, n, scale) }
	return ref.Inputs{
		X: random(p.Tokens*p.In, 1), W1: random(p.Heads*p.In*p.Hidden, 1/math.Sqrt(float64(p.In))),
		W2: random(p.Heads*p.Hidden*p.Out, 1/math.Sqrt(float64(p.Hidden))), DY: random(p.Tokens*p.Heads*p.Out, 1),
	}
}

// cases calls f for problems of a format: sizes 1 and odd ones, with weight gradients in
// the format and in float32, and all heads at a time or fewer.
func cases(t *testing.T, d *vk.Device, impl gemm.Impl, f func(t *testing.T, p grouped.Problem, heads int, layout kerneltest.Layout)) {
	for _, format := range dtype.All() {
		if gemm.Supports(d.Caps(), impl, gemm.Problem{M: 1, N: 1, K: 1, DType: format, Out: format}) != nil {
			continue
		}
		for i, s := range []struct{ tokens, heads, in, hidden, out, atATime int }{
			{1, 1, 1, 1, 1, 0}, // one of everything
			{37, 5, 20, 45, 3, 2},
			{70, 3, 16, 33, 1, 0},
			{9, 2, 1, 7, 18, 1},
			{50, 3, 17, 21, 8, 2},  // as many outputs as one kernel takes
			{20, 5, 4, 210, 2, 0},  // rows of hidden units with a gap behind them
			{300, 2, 11, 13, 3, 0}, // enough tokens for copies of w1, where those pay
		} {
			if impl == gemm.CoopMat && !vktest.Thorough(d) && !slices.Contains(representative(format), i) {
				continue
			}
			p := grouped.Problem{Tokens: s.tokens, Heads: s.heads, In: s.in, Hidden: s.hidden, Out: s.out, DType: format, Grad: format}
			if i%2 == 0 {
				p.Grad = dtype.Float32
			}
			layout := kerneltest.Layout(i) % kerneltest.Layouts
			t.Run(fmt.Sprintf("%v/%v/%v/layout=%d", impl, format, p, layout), func(t *testing.T) { f(t, p, s.atATime, layout) })
		}
	}
}

// representative returns which of the cases stand for all where kernels on matrices are
// compiled for seconds: odd sizes; path scalar has the others there.
func representative(format dtype.DType) []int {
	if format == dtype.Float32 {
		return []int{1}
	}
	return []int{1, 2}
}

// tensors are those of a pass, with y in a format. A pre that is kept is for the backward pass
// another one than that of x.
func tensors(p grouped.Problem, in ref.Inputs, y dtype.DType, keep grouped.Keep, backward bool) []kerneltest.Tensor {
	if backward && keep == grouped.KeepPre {
		in.Pre = kerneltest.Random(rand.New(rand.NewPCG(5, uint64(p.Hidden))), p.DType, p.Tokens*p.Heads*p.Hidden, 1)
	}
	want, plain := ref.Compute(in, p), ref.Plain(in, p)
	b := ref.NewBounds(want, plain, p)
	list := []kerneltest.Tensor{
		{Name: "x", DType: p.DType, Shape: p.XShape(), Values: in.X},
		{Name: "w1", DType: p.DType, Shape: p.W1Shape(), Values: in.W1},
		{Name: "w2", DType: p.DType, Shape: p.W2Shape(), Values: in.W2},
	}
	if !backward {
		if keep == grouped.KeepPre {
			list = append(list, kerneltest.Tensor{Name: "pre", DType: p.DType, Shape: p.PreShape(), Want: want.Pre, Bound: b.Pre})
		}
		return append(list, kerneltest.Tensor{Name: "y", DType: y, Shape: p.YShape(), Want: want.Y, Bound: b.Y})
	}
	if keep == grouped.KeepPre {
		list = append(list, kerneltest.Tensor{Name: "pre", DType: p.DType, Shape: p.PreShape(), Values: in.Pre})
	}
	return append(list,
		kerneltest.Tensor{Name: "dy", DType: p.DType, Shape: p.YShape(), Values: in.DY},
		kerneltest.Tensor{Name: "dx", DType: p.DType, Shape: p.XShape(), Want: want.DX, Bound: b.DX},
		kerneltest.Tensor{Name: "dw1", DType: p.Grad, Shape: p.W1Shape(), Want: want.DW1, Bound: b.DW1},
		kerneltest.Tensor{Name: "dw2", DType: p.Grad, Shape: p.W2Shape(), Want: want.DW2, Bound: b.DW2})
}

// record records a pass on named tensors.
func record(p grouped.Problem, opt grouped.Options, backward bool) kerneltest.Record {
	return func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt.Pre = t["pre"]
		if backward {
			return grouped.Backward(c, t["dx"], t["dw1"], t["dw2"], t["dy"], t["x"], t["w1"], t["w2"], p, opt)
		}
		return grouped.Forward(c, t["y"], t["x"], t["w1"], t["w2"], p, opt)
	}
}

// TestPasses runs both passes on every path, with all that can be kept, and y in float32.
func TestPasses(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range gemm.Impls() {
		cases(t, d, impl, func(t *testing.T, p grouped.Problem, heads int, layout kerneltest.Layout) {
			in := inputs(p)
			for _, pass := range []struct {
				backward, products, float32 bool
				keep                        grouped.Keep
			}{
				{}, {products: true}, {float32: true}, {products: true, float32: true}, {backward: true}, {backward: true, products: true},
				{keep: grouped.KeepPre}, {keep: grouped.KeepPre, products: true}, {keep: grouped.KeepPre, float32: true},
				{keep: grouped.KeepPre, backward: true}, {keep: grouped.KeepPre, backward: true, products: true},
			} {
				y := p.DType
				if pass.float32 {
					if y == dtype.Float32 {
						continue
					}
					y = dtype.Float32
				}
				c := kerneltest.Case{Name: "grouped", Layout: layout, Tensors: tensors(p, in, y, pass.keep, pass.backward)}
				t.Logf("%+v", pass)
				c.Test(t, d, record(p, grouped.Options{Impl: impl, Heads: heads, Products: pass.products, Float32: pass.float32}, pass.backward))
			}
		})
	}
}

// TestBackwardLoss has a loss whose gradient is a copy of one given, for all heads at a time
// and for fewer, with and without silu(pre) in memory.
func TestBackwardLoss(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range gemm.Impls() {
		cases(t, d, impl, func(t *testing.T, p grouped.Problem, heads int, layout kerneltest.Layout) {
			in := inputs(p)
			c := kerneltest.Case{Name: "grouped", Layout: layout, Tensors: tensors(p, in, p.DType, grouped.KeepNothing, true)}
			for _, products := range []bool{false, true} {
				t.Logf("products=%v", products)
				c.Test(t, d, func(c *vk.Cmd, t map[string]vk.Tensor) error {
					loss := func(c *vk.Cmd, dy, y vk.Tensor) error { return gemm.Pad(c, dy, t["dy"]) }
					opt := grouped.Options{Impl: impl, Heads: heads, Products: products}
					return grouped.BackwardLoss(c, t["dx"], t["dw1"], t["dw2"], t["x"], t["w1"], t["w2"], loss, p, opt)
				})
			}
		})
	}
}

// TestWorkspace runs both passes in memory of their own that is full of NaN, with all that can
// be kept, and wants too little of it to be refused.
func TestWorkspace(t *testing.T) {
	d := vktest.Open(t)
	p := grouped.Problem{Tokens: 37, Heads: 3, In: 20, Hidden: 45, Out: 3, DType: dtype.Float16, Grad: dtype.Float32}
	in := inputs(p)
	for _, impl := range gemm.Impls() {
		for _, backward := range []bool{false, true} {
			for _, keep := range grouped.Keeps() {
				opt := grouped.Options{Impl: impl, Heads: 2}
				size := grouped.ForwardWorkspace
				if backward {
					size = grouped.BackwardWorkspace
				}
				bytes, err := size(d.Caps(), p, opt, keep)
				if errors.Is(err, gemm.ErrUnsupported) {
					continue
				}
				require.NoError(t, err)
				all, err := size(d.Caps(), p, grouped.Options{Impl: impl}, keep)
				require.NoError(t, err)
				require.Less(t, bytes, all, "fewer heads at a time need less memory")
				c := kerneltest.Case{Name: "grouped", Tensors: tensors(p, in, p.DType, keep, backward)}
				c.TestWorkspace(t, d, bytes, func(workspace *vk.Buffer) kerneltest.Record {
					opt.Workspace = workspace
					return record(p, opt, backward)
				})
			}
		}
	}
}

// TestChoice wants one kernel in the place of products where outputs are few, on matrices unless
// pre is kept, and with Products or many outputs memory for hidden units.
func TestChoice(t *testing.T) {
	d := vktest.Open(t)
	p := grouped.Problem{Tokens: 1024, Heads: 4, In: 64, Hidden: 512, Out: 3, DType: dtype.Float16, Grad: dtype.Float16}
	if err := gemm.Supports(d.Caps(), gemm.CoopMat, gemm.Problem{M: 1, N: 1, K: 1, DType: p.DType, Out: p.DType}); err != nil {
		t.Skip(err)
	}
	hidden := int64(2 * p.Tokens * p.Heads * p.Hidden)
	for _, x := range []struct {
		backward bool
		keep     grouped.Keep
		want     string
	}{
		{false, grouped.KeepNothing, "narrow coopmat"}, {false, grouped.KeepPre, "narrow coopmat"},
		{true, grouped.KeepNothing, "narrow coopmat"}, {true, grouped.KeepPre, "narrow dsilu"},
	} {
		opt := grouped.Options{Impl: gemm.CoopMat}
		size := grouped.ForwardWorkspace
		if x.backward {
			size = grouped.BackwardWorkspace
		}
		check := func(p grouped.Problem, opt grouped.Options) (bytes int64, runs string) {
			bytes, err := size(d.Caps(), p, opt, x.keep)
			require.NoError(t, err)
			runs, err = grouped.Describe(d.Caps(), p, opt, x.backward, x.keep)
			require.NoError(t, err)
			return bytes, runs
		}
		fused, runs := check(p, opt)
		require.Contains(t, runs, x.want)
		opt.Products = true
		products, runs := check(p, opt)
		require.NotContains(t, runs, "narrow")
		require.Greater(t, products, fused)
		require.GreaterOrEqual(t, products, hidden)
		if !x.backward { // a pass without hidden units in memory takes all heads at a time
			long := p
			long.Tokens = 1 << 17
			bytes, _ := check(long, grouped.Options{Impl: gemm.CoopMat})
			all, _ := check(long, grouped.Options{Impl: gemm.CoopMat, Heads: p.Heads})
			require.Equal(t, all, bytes)
			bytes, _ = check(long, opt)
			all, _ = check(long, grouped.Options{Impl: gemm.CoopMat, Products: true, Heads: p.Heads})
			require.Less(t, bytes, all)
		}
		many := p
		many.Out = 9 // more than the one kernel takes
		_, runs = check(many, grouped.Options{Impl: gemm.CoopMat})
		require.NotContains(t, runs, "narrow")
	}
}

// TestArguments wants errors that name the value or the tensor that does not fit.
func TestArguments(t *testing.T) {
	d := vktest.Open(t)
	p := grouped.Problem{Tokens: 2, Heads: 6, In: 3, Hidden: 4, Out: 5}
	c, err := d.NewCmd("arguments")
	require.NoError(t, err)
	defer c.Close()
	tensor := func(shape ...int) vk.Tensor {
		x, err := d.NewTensor("x", dtype.Float32, shape...)
		require.NoError(t, err)
		t.Cleanup(x.Close)
		return x
	}
	x, w1, w2, y := tensor(2, 3), tensor(6, 3, 4), tensor(6, 4, 5), tensor(2, 6, 5)
	opt := grouped.Options{}
	require.NoError(t, grouped.Forward(c, y, x, w1, w2, p, opt))
	require.ErrorContains(t, grouped.Forward(c, y, x, w2, w1, p, opt), "grouped: w1 has shape [6 4 5]")
	require.ErrorContains(t, grouped.Forward(c, y.Permute(1, 0, 2), x, w1, w2, p, opt), "grouped: y has shape [6 2 5]")
	require.ErrorContains(t, grouped.Backward(c, x, w1, w2, y, x, w1, w2, p, opt), "grouped: dx overlaps x")
	require.EqualError(t, grouped.Forward(c, y, x, w1, w2, p, grouped.Options{Heads: -1}), "grouped: heads_at_a_time=-1 is negative")
	pre := tensor(2, 6, 4)
	require.ErrorContains(t, grouped.Forward(c, y, x, w1, w2, p, grouped.Options{Pre: y}), "grouped: pre has shape [2 6 5]")
	require.ErrorContains(t, grouped.Forward(c, y, x, w1, w2, p, grouped.Options{Pre: vk.View(y.Buffer, p.DType, p.PreShape()...)}), "grouped: pre overlaps y")
	require.ErrorContains(t, grouped.Backward(c, tensor(2, 3), tensor(6, 3, 4), tensor(6, 4, 5), y, x, w1, w2, p, grouped.Options{Pre: y}), "grouped: pre has shape [2 6 5]")
	require.ErrorContains(t, grouped.Backward(c, vk.View(pre.Buffer, p.DType, p.XShape()...), tensor(6, 3, 4), tensor(6, 4, 5), y, x, w1, w2, p, grouped.Options{Pre: pre}), "grouped: dx overlaps pre")
	require.EqualError(t, grouped.BackwardLoss(c, x, w1, w2, x, w1, w2, nil, p, grouped.Options{Pre: pre}), "grouped: pre is given, but BackwardLoss computes it")
	_, err = grouped.BackwardWorkspace(d.Caps(), p, opt, chain.KeepHidden)
	require.EqualError(t, err, "grouped: keep=hidden is not one of nothing, pre")
	p.Heads = 0
	require.ErrorContains(t, grouped.Forward(c, y, x, w1, w2, p, opt), "grouped: heads=0 is not from 1 to")
	p.Heads, p.Grad = 6, 99
	require.ErrorContains(t, grouped.Forward(c, y, x, w1, w2, p, opt), "is not one of float32, float16, bfloat16")
}
