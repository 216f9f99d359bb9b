package mlp_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/kerneltest"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/mlp/ref"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/vktest"
)

// inputs are random; weights are small, so that pre is about 1.
func inputs(p mlp.Problem) ref.Inputs {
	rng := rand.New(rand.NewPCG(uint64(p.Tokens), uint64(p.Hidden)))
	random := func(n int, scale float64) []float64 { return kerneltest.Random(rng, p.DType, n, scale) }
	return ref.Inputs{
		X: random(p.Tokens*p.In, 1), W1: random(p.In*p.Hidden, 1/math.Sqrt(float64(p.In))),
		W2: random(p.Hidden*p.Out, 1/math.Sqrt(float64(p.Hidden))), DY: random(p.Tokens*p.Out, 1),
	}
}

// cases calls f for problems of a format: sizes 1 and odd ones, with weight gradients in
// the format and in float32.
func cases(t *testing.T, d *vk.Device, impl gemm.Impl, f func(t *testing.T, p mlp.Problem, layout kerneltest.Layout)) {
	for _, format := range dtype.All() {
		if gemm.Supports(d.Caps(), impl, gemm.Problem{M: 1, N: 1, K: 1, DType: format, Out: format}) != nil {
			continue
		}
		for i, s := range [][4]int{{1, 1, 1, 1}, {37, 20, 45, 18}, {70, 16, 33, 5}, {600, 8, 21, 9}} {
			if impl == gemm.CoopMat && !vktest.Thorough(d) && !slices.Contains(representative(format), i) {
				continue
			}
			p := mlp.Problem{Tokens: s[0], In: s[1], Hidden: s[2], Out: s[3], DType: format, Grad: format}
			if i%2 == 0 {
				p.Grad = dtype.Float32
			}
			layout := kerneltest.Layout(i) % kerneltest.Layouts
			t.Run(fmt.Sprintf("%v/%v/%v/layout=%d", impl, format, p, layout), func(t *testing.T) { f(t, p, layout) })
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

// tensorsOf returns those of both passes.
func tensorsOf(p mlp.Problem, in ref.Inputs, keep mlp.Keep, backward bool) []kerneltest.Tensor {
	want, plain := ref.Compute(in, p), ref.Plain(in, p)
	b := ref.NewBounds(want, plain, p)
	list := []kerneltest.Tensor{
		{Name: "x", DType: p.DType, Shape: p.XShape(), Values: in.X},
		{Name: "w1", DType: p.DType, Shape: p.W1Shape(), Values: in.W1},
		{Name: "w2", DType: p.DType, Shape: p.W2Shape(), Values: in.W2},
	}
	if !backward {
		list = append(list, kerneltest.Tensor{Name: "y", DType: p.DType, Shape: p.YShape(), Want: want.Y, Bound: b.Y})
		if keep >= mlp.KeepPre {
			list = append(list, kerneltest.Tensor{Name: "pre", DType: p.DType, Shape: p.PreShape(), Want: want.Pre, Bound: b.Pre})
		}
		if keep == mlp.KeepHidden {
			list = append(list, kerneltest.Tensor{Name: "hidden", DType: p.DType, Shape: p.PreShape(), Want: want.Hidden, Bound: b.Hidden})
		}
		return list
	}
	if keep >= mlp.KeepPre {
		list = append(list, kerneltest.Tensor{Name: "pre", DType: p.DType, Shape: p.PreShape(), Values: plain.Pre})
	}
	if keep == mlp.KeepHidden {
		list = append(list, kerneltest.Tensor{Name: "hidden", DType: p.DType, Shape: p.PreShape(), Values: plain.Hidden})
	}
	return append(list,
		kerneltest.Tensor{Name: "dy", DType: p.DType, Shape: p.YShape(), Values: in.DY},
		kerneltest.Tensor{Name: "dx", DType: p.DType, Shape: p.XShape(), Want: want.DX, Bound: b.DX},
		kerneltest.Tensor{Name: "dw1", DType: p.Grad, Shape: p.W1Shape(), Want: want.DW1, Bound: b.DW1},
		kerneltest.Tensor{Name: "dw2", DType: p.Grad, Shape: p.W2Shape(), Want: want.DW2, Bound: b.DW2})
}

// record records a pass on named tensors.
func record(p mlp.Problem, opt mlp.Options, backward bool) kerneltest.Record {
	return func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt.Pre, opt.Hidden = t["pre"], t["hidden"]
		if backward {
			return mlp.Backward(c, t["dx"], t["dw1"], t["dw2"], t["dy"], t["x"], t["w1"], t["w2"], p, opt)
		}
		return mlp.Forward(c, t["y"], t["x"], t["w1"], t["w2"], p, opt)
	}
}

// TestPasses runs both passes on every path, with all that can be kept.
func TestPasses(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range gemm.Impls() {
		cases(t, d, impl, func(t *testing.T, p mlp.Problem, layout kerneltest.Layout) {
			in := inputs(p)
			for _, backward := range []bool{false, true} {
				for _, keep := range mlp.Keeps() {
					c := kerneltest.Case{Name: "mlp", Layout: layout, Tensors: tensorsOf(p, in, keep, backward)}
					t.Logf("backward=%v keep=%v", backward, keep)
					c.Test(t, d, record(p, mlp.Options{Impl: impl}, backward))
				}
			}
		})
	}
}

// TestMany runs both passes on so many tokens that products of a large device have weights in
// fragments, and hidden units in memory of ours go up to whole lines of it.
func TestMany(t *testing.T) {
	d := vktest.Open(t)
	p := mlp.Problem{Tokens: 25400, In: 16, Hidden: 101, Out: 16, DType: dtype.Float16, Grad: dtype.Float32}
	words, err := mlp.Describe(d.Caps(), p, mlp.Options{}, false, mlp.KeepNothing)
	vktest.Require(t, gemm.CoopMat.String(), err)
	t.Log(words)
	in := inputs(p)
	for _, backward := range []bool{false, true} {
		c := kerneltest.Case{Name: "mlp", Tensors: tensorsOf(p, in, mlp.KeepNothing, backward)}
		c.Test(t, d, record(p, mlp.Options{}, backward))
	}
}

// TestFused runs the forward pass as one kernel, by itself and in memory of its own, and
// wants it to be what is described.
func TestFused(t *testing.T) {
	d := vktest.Open(t)
	cases(t, d, gemm.CoopMat, func(t *testing.T, p mlp.Problem, layout kerneltest.Layout) {
		if p.DType == dtype.Float32 {
			return // TestFusedUnsupported has it
		}
		opt := mlp.Options{Fused: mlp.FusedOn}
		words, err := mlp.Describe(d.Caps(), p, opt, false, mlp.KeepNothing)
		vktest.Require(t, gemm.CoopMat.String(), err)
		require.Regexp(t, `^pair s\d`, words)
		bytes, err := mlp.ForwardWorkspace(d.Caps(), p, opt, mlp.KeepNothing)
		require.NoError(t, err)
		workspace, err := d.NewBuffer("workspace", bytes)
		require.NoError(t, err)
		defer workspace.Close()
		c := kerneltest.Case{Name: "mlp", Layout: layout, Tensors: tensorsOf(p, inputs(p), mlp.KeepNothing, false)}
		for _, opt.Workspace = range []*vk.Buffer{nil, workspace} {
			c.Test(t, d, record(p, opt, false))
		}
		less, err := d.NewBuffer("less", bytes-256)
		require.NoError(t, err)
		defer less.Close()
		opt.Workspace = less
		_, err = c.Check(d, record(p, opt, false))
		require.ErrorContains(t, err, fmt.Sprintf("mlp: workspace has %d bytes, want %d", bytes-256, bytes))
	})
}

// TestFusedUnsupported says why there is no such kernel, and wants two products where the
// choice is left.
func TestFusedUnsupported(t *testing.T) {
	d := vktest.Open(t)
	good := mlp.Problem{Tokens: 37, In: 20, Hidden: 45, Out: 18, DType: dtype.Float16}
	vktest.Require(t, gemm.CoopMat.String(), gemm.Supports(d.Caps(), gemm.CoopMat, gemm.Problem{M: 1, N: 1, K: 1, DType: good.DType, Out: good.DType}))
	wide, single := good, good
	wide.Out = 1 << 12
	single.DType = dtype.Float32
	for _, x := range []struct {
		p    mlp.Problem
		opt  mlp.Options
		keep mlp.Keep
		want string
	}{
		{good, mlp.Options{}, mlp.KeepPre, "mlp: fused: the kernel does not write pre"},
		{good, mlp.Options{}, mlp.KeepHidden, "mlp: fused: the kernel does not write pre"},
		{good, mlp.Options{Impl: gemm.Scalar}, mlp.KeepNothing, "mlp: fused: path scalar has no such kernel"},
		{single, mlp.Options{}, mlp.KeepNothing, "mlp: fused: gemm: pair: float32 matrices have no kernel"},
		{wide, mlp.Options{}, mlp.KeepNothing, "mlp: fused: gemm: pair: n=4096 is more than the "},
	} {
		for _, x.opt.Fused = range []mlp.Fused{mlp.FusedAuto, mlp.FusedOff} {
			words, err := mlp.Describe(d.Caps(), x.p, x.opt, false, x.keep)
			require.NoError(t, err)
			require.NotContains(t, words, "pair")
		}
		x.opt.Fused = mlp.FusedOn
		_, err := mlp.ForwardWorkspace(d.Caps(), x.p, x.opt, x.keep)
		require.ErrorIs(t, err, gemm.ErrUnsupported)
		require.ErrorContains(t, err, x.want)
	}
	_, err := mlp.ForwardWorkspace(d.Caps(), good, mlp.Options{Fused: mlp.FusedOff + 1}, mlp.KeepNothing)
	require.EqualError(t, err, "mlp: fused=Fused(3) is not one of auto, on, off")
}

// TestWorkspace runs both passes in memory of their own that is full of NaN, wants too
// little of it to be refused, and none of it for hidden units that are kept.
func TestWorkspace(t *testing.T) {
	d := vktest.Open(t)
	p := mlp.Problem{Tokens: 37, In: 20, Hidden: 45, Out: 18}
	in := inputs(p)
	for _, backward := range []bool{false, true} {
		size := mlp.ForwardWorkspace
		if backward {
			size = mlp.BackwardWorkspace
		}
		for _, keep := range mlp.Keeps() {
			bytes, err := size(d.Caps(), p, mlp.Options{Impl: gemm.Scalar}, keep)
			require.NoError(t, err)
			tensors := int64(1) // of hidden units, their rows and beginnings aligned
			if backward {
				tensors++
			}
			if keep == mlp.KeepHidden {
				tensors--
			}
			require.Equal(t, tensors*((4*37*48+255)&^255), bytes)
			if bytes == 0 {
				continue
			}
			c := kerneltest.Case{Name: "mlp", Tensors: tensorsOf(p, in, keep, backward)}
			c.TestWorkspace(t, d, bytes, func(workspace *vk.Buffer) kerneltest.Record {
				return record(p, mlp.Options{Impl: gemm.Scalar, Workspace: workspace}, backward)
			})
		}
	}
}

// TestArguments wants errors that name the value or the tensor that does not fit.
func TestArguments(t *testing.T) {
	d := vktest.Open(t)
	p := mlp.Problem{Tokens: 2, In: 3, Hidden: 4, Out: 5}
	c, err := d.NewCmd("arguments")
	require.NoError(t, err)
	defer c.Close()
	tensor := func(shape ...int) vk.Tensor {
		x, err := d.NewTensor("x", dtype.Float32, shape...)
		require.NoError(t, err)
		t.Cleanup(x.Close)
		return x
	}
	x, w1, w2, y := tensor(2, 3), tensor(3, 4), tensor(4, 5), tensor(2, 5)
	require.NoError(t, mlp.Forward(c, y, x, w1, w2, p, mlp.Options{}))
	require.ErrorContains(t, mlp.Forward(c, y, x, w2, w1, p, mlp.Options{}), "mlp: w1 has shape [4 5]")
	require.ErrorContains(t, mlp.Forward(c, y, y, w1, w2, p, mlp.Options{}), "mlp: x has shape [2 5]")
	require.ErrorContains(t, mlp.Backward(c, x, w1, w2, y, x, w1, w2, p, mlp.Options{}), "mlp: dx overlaps x")
	pre := tensor(2, 4)
	alone := "mlp: hidden is given without pre: gradients need both, or pre alone"
	require.EqualError(t, mlp.Forward(c, y, x, w1, w2, p, mlp.Options{Hidden: pre}), alone)
	require.EqualError(t, mlp.Backward(c, x, w1, w2, y, x, w1, w2, p, mlp.Options{Hidden: pre}), alone)
	require.ErrorContains(t, mlp.Forward(c, y, x, w1, w2, p, mlp.Options{Pre: pre, Hidden: pre}), "mlp: hidden overlaps pre")
	require.ErrorContains(t, mlp.Forward(c, y, x, w1, w2, p, mlp.Options{Pre: pre, Hidden: y}), "mlp: hidden has shape [2 5]")
	require.ErrorContains(t, mlp.Backward(c, tensor(2, 3), tensor(3, 4), tensor(4, 5), y, x, w1, w2, p, mlp.Options{Pre: pre, Hidden: w1}), "mlp: hidden has shape [3 4]")
	p.Hidden = 0
	require.ErrorContains(t, mlp.Forward(c, y, x, w1, w2, p, mlp.Options{}), "mlp: hidden=0 is not from 1 to")
}
