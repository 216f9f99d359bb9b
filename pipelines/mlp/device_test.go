package mlp_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// newCall returns the call of a pass alone.
func newCall(p mlp.Problem, o mlp.Options, pass kit.Pass) *call.MLP {
	return &call.MLP{
		Problem: p, Direction: call.Direction{Backward: pass == kit.Backward}, Impl: o.Impl.String(), Fused: o.Fused,
		HeadsAtATime: o.HeadsAtATime, Products: o.Products, Data: call.Data{Seed: 1, Tuning: o.Tuning},
	}
}

var passes = []kit.Pass{kit.Forward, kit.Backward}

// TestDrawn checks drawn calls of one perceptron and of heads on every path, and as one kernel: x in shared
// memory, in the cache, and both; grids of subgroups for hidden units of one row and of several; one chunk
// of hidden units in shared memory and two; blocks that share all rows or the last rows.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range engine.Impls() {
		for _, kernel := range []string{"mlp", "grouped"} {
			n, change := 16, func(c call.Call) {
				m := c.(*call.MLP)
				m.Skinny, m.TransA, m.TransB, m.Alpha = false, false, false, 0
			}
			if impl == engine.CoopMat {
				n = 4
			}
			vktest.Require(t, impl.String(), call.TestDrawn(t, d, kernel, n, call.Space{Impls: []string{impl.String()}, Thorough: vktest.Thorough(d)}, change))
		}
	}
	for _, config := range []string{
		"pair s2 t2x2 h1x1 x4 ahead2", "pair s2 t1x3 h1x3 x0 ahead3 loadahead1 double", "pair s3 t2x2 h2x2 x1 ahead2 splits2 rows32",
		"pair s4 t2x1 h1x2 x2 ahead4 double splits3", "",
	} {
		s := call.Space{Impls: []string{engine.CoopMat.String()}, DTypes: []dtype.DType{dtype.Float16, dtype.BFloat16}, Thorough: vktest.Thorough(d)}
		vktest.Require(t, engine.CoopMat.String(), call.TestDrawn(t, d, "mlp", 2, s, func(c call.Call) {
			m := c.(*call.MLP)
			m.Backward, m.Keep, m.Fused, m.FusedConfig, m.Float32 = false, mlp.KeepNothing, mlp.FusedOn, config, m.Tokens%2 > 0
		}))
	}
}

// TestBackwardLoss has a loss whose gradient is a copy of a given one: for one perceptron, all
// heads at a time and fewer, with and without silu(pre) in memory.
func TestBackwardLoss(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range engine.Impls() {
		for i, p := range []mlp.Problem{
			{Tokens: 37, In: 20, Hidden: 45, Out: 18}, {Tokens: 37, Heads: 5, In: 20, Hidden: 45, Out: 3, DType: dtype.Float16}, {Tokens: 9, Heads: 2, In: 1, Hidden: 7, Out: 18, DType: dtype.Float16},
		} {
			o := mlp.Options{Impl: impl, HeadsAtATime: i}
			m := newCall(p, o, kit.Backward)
			m.Data.Layout = string("pao"[i])
			c, _, err := call.Case(d.Caps(), m, kit.Backward, call.Inputs(m))
			vktest.Require(t, impl.String(), err)
			for _, o.Products = range []bool{false, true} {
				t.Logf("%v products=%v", m, o.Products)
				c.Test(t, d, func(c *vk.Cmd, list map[string]vk.Tensor) error {
					var t mlp.Tensors
					var g mlp.Gradients
					call.Bind(list, &t, &g)
					given := g.DY
					g.DY = vk.Tensor{}
					return mlp.BackwardLoss(c, t, g, func(c *vk.Cmd, dy, y vk.Tensor) error { return engine.Pad(c, matrices(dy), matrices(given)) }, p, o)
				})
			}
		}
	}
}

// matrices returns a tensor with an axis of heads, which may be 1.
func matrices(t vk.Tensor) vk.Tensor {
	if len(t.Shape) == 2 {
		t.Shape, t.Strides = slices.Insert(slices.Clone(t.Shape), 0, 1), slices.Insert(slices.Clone(t.Strides), 0, 0)
	}
	return t
}

// TestMany runs both passes with enough tokens that products of a large device pack their
// weights, and that hidden units in the workspace are padded to whole lines of a cache.
func TestMany(t *testing.T) {
	d := vktest.Open(t)
	p := mlp.Problem{Tokens: 25400, In: 40, Hidden: 101, Out: 40, DType: dtype.Float16, Grad: dtype.Some(dtype.Float32)}
	plan, err := mlp.Choose(d.Caps(), p, kit.Forward, mlp.Options{})
	vktest.Require(t, engine.CoopMat.String(), err)
	t.Log(plan)
	for _, pass := range passes {
		call.Test(t, d, newCall(p, mlp.Options{}, pass), nil, pass)
	}
}

// TestUnits runs both passes with hidden units that are kept in rows with zeros behind, and wants an
// error where no operand of the products can be packed.
func TestUnits(t *testing.T) {
	d := vktest.Open(t)
	p := mlp.Problem{Tokens: 37, In: 20, Hidden: 45, Out: 18, DType: dtype.Float16, Grad: dtype.Some(dtype.Float32), Keep: mlp.KeepHidden}
	require.Equal(t, 45, mlp.KeptUnits(d.Caps(), p, mlp.Options{Impl: engine.Scalar}))
	p.Units = 48
	require.NoError(t, p.Validate())
	for _, pass := range passes {
		_, err := mlp.Workspace(d.Caps(), p, pass, mlp.Options{Impl: engine.Scalar})
		require.ErrorIs(t, err, vk.ErrUnsupported)
	}
	vktest.Require(t, engine.CoopMat.String(), engine.Supports(d.Caps(), engine.CoopMat, engine.Problem{M: 1, N: 1, K: 1, DType: p.DType, Out: p.DType}))
	shape, _ := chips.MatrixShape(d.Caps(), p.DType)
	config, err := engine.ParseConfig(fmt.Sprintf("coopmat s2x2 t1x2 k%d packb g3", 4*shape.N))
	require.NoError(t, err)
	o := mlp.Options{Impl: engine.CoopMat, Tuning: kit.NewTuning(d.Caps())}
	for _, act := range []engine.Activation{engine.Identity, engine.SiLUKeep, engine.TimesDSiLU} {
		for _, trans := range []bool{false, true} {
			product := engine.Problem{M: p.Tokens, N: p.Units, K: p.Units, TransB: trans, Activation: act, DType: p.DType, Out: p.DType}
			require.NoError(t, o.Tuning.Add("gemm", kit.Forward, product, config, 1))
		}
	}
	require.Equal(t, 48, mlp.KeptUnits(d.Caps(), p, o))
	call.Test(t, d, newCall(p, o, kit.Forward), nil, passes...)
}

// TestChoice wants one kernel in place of products on matrices where outputs are few. The test
// wants memory for hidden units with Options.Products, with many outputs, and without heads.
func TestChoice(t *testing.T) {
	d := vktest.Open(t)
	good := mlp.Problem{Tokens: 1024, Heads: 4, In: 64, Hidden: 512, Out: 3, DType: dtype.Float16, Grad: dtype.Some(dtype.Float16)}
	if err := engine.Supports(d.Caps(), engine.CoopMat, engine.Problem{M: 1, N: 1, K: 1, DType: good.DType, Out: good.DType}); err != nil {
		t.Skip(err)
	}
	hidden := int64(2 * good.Tokens * good.Heads * good.Hidden)
	for _, x := range []struct {
		pass kit.Pass
		keep mlp.Keep
		want string
	}{
		{kit.Forward, mlp.KeepNothing, "skinny coopmat"}, {kit.Forward, mlp.KeepPre, "skinny coopmat"},
		{kit.Backward, mlp.KeepNothing, "skinny coopmat"}, {kit.Backward, mlp.KeepPre, "skinny dsilu"},
	} {
		p, o := good, mlp.Options{Impl: engine.CoopMat}
		p.Keep = x.keep
		choose := func(p mlp.Problem, o mlp.Options) mlp.Plan {
			plan, err := mlp.Choose(d.Caps(), p, x.pass, o)
			require.NoError(t, err)
			return plan
		}
		fused := choose(p, o)
		require.Contains(t, fused.String(), x.want)
		o.Products = true
		products := choose(p, o)
		require.NotContains(t, products.String(), "skinny")
		require.Greater(t, products.Workspace(), fused.Workspace())
		require.GreaterOrEqual(t, products.Workspace(), hidden)
		if x.pass == kit.Forward { // a pass without hidden units in memory takes all heads at a time
			long := p
			long.Tokens = 1 << 17
			all := mlp.Options{Impl: engine.CoopMat, HeadsAtATime: p.Heads}
			require.Equal(t, choose(long, all).Workspace(), choose(long, mlp.Options{Impl: engine.CoopMat}).Workspace())
			all.Products = true
			require.Less(t, choose(long, o).Workspace(), choose(long, all).Workspace())
		}
		many, one := p, p
		many.Out = 9 // more than the one kernel takes
		one.Heads = 0
		for _, p := range []mlp.Problem{many, one} {
			require.NotContains(t, choose(p, mlp.Options{Impl: engine.CoopMat}).String(), "skinny")
		}
	}
}

// TestOptions wants errors that name the value of a problem or an option that breaks a rule.
func TestOptions(t *testing.T) {
	caps := vktest.Open(t).Caps()
	for want, change := range map[string]func(p *mlp.Problem, o *mlp.Options){
		"mlp: heads=-1 is not from 0 to 1073741824":                       func(p *mlp.Problem, o *mlp.Options) { p.Heads = -1 },
		"is not one of float32, float16, bfloat16":                        func(p *mlp.Problem, o *mlp.Options) { p.Grad = 99 },
		"mlp: keep=Keep(9) is not one of nothing, pre, hidden":            func(p *mlp.Problem, o *mlp.Options) { p.Keep = 9 },
		"mlp: keep=hidden, but of heads=6 only pre is kept":               func(p *mlp.Problem, o *mlp.Options) { p.Heads, p.Keep = 6, mlp.KeepHidden },
		"mlp: units=47 is none of 0, hidden=45 and, with keep=hidden, 48": func(p *mlp.Problem, o *mlp.Options) { p.Hidden, p.Units, p.Keep = 45, 47, mlp.KeepHidden },
	} {
		p, o := mlp.Problem{Tokens: 2, In: 3, Hidden: 4, Out: 5}, mlp.Options{}
		change(&p, &o)
		for _, pass := range passes {
			require.ErrorContains(t, mlp.Supports(caps, p, pass, o), want)
		}
	}
}

// TestLossArguments wants BackwardLoss to refuse what only Backward takes.
func TestLossArguments(t *testing.T) {
	d := vktest.Open(t)
	c, err := d.NewCmd("arguments")
	require.NoError(t, err)
	defer c.Close()
	tensor := func(shape ...int) vk.Tensor { return vktest.Tensor(t, d, dtype.Float32, shape...) }
	p := mlp.Problem{Tokens: 2, In: 3, Hidden: 4, Out: 5}
	x := mlp.Tensors{X: tensor(2, 3), W1: tensor(3, 4), W2: tensor(4, 5)}
	g := mlp.Gradients{DY: tensor(2, 5), DX: tensor(2, 3), DW1: tensor(3, 4), DW2: tensor(4, 5)}
	require.ErrorContains(t, mlp.BackwardLoss(c, x, g, nil, p, mlp.Options{}), "mlp: dy ")
	p.Keep = mlp.KeepPre
	require.EqualError(t, mlp.BackwardLoss(c, x, g, nil, p, mlp.Options{}), "mlp: keep=pre, but BackwardLoss computes pre")
}

// TestFusedUnsupported wants the reason where there is no such kernel, and two products where the
// choice is free.
func TestFusedUnsupported(t *testing.T) {
	d := vktest.Open(t)
	good := mlp.Problem{Tokens: 37, In: 20, Hidden: 45, Out: 18, DType: dtype.Float16}
	vktest.Require(t, engine.CoopMat.String(), engine.Supports(d.Caps(), engine.CoopMat, engine.Problem{M: 1, N: 1, K: 1, DType: good.DType, Out: good.DType}))
	for want, change := range map[string]func(p *mlp.Problem, o *mlp.Options){
		"the kernel does not write pre":   func(p *mlp.Problem, _ *mlp.Options) { p.Keep = mlp.KeepPre },
		"the kernel has no heads":         func(p *mlp.Problem, _ *mlp.Options) { p.Heads = 2 },
		"path scalar has no such kernel":  func(_ *mlp.Problem, o *mlp.Options) { o.Impl = engine.Scalar },
		"float32 matrices have no kernel": func(p *mlp.Problem, _ *mlp.Options) { p.DType = dtype.Float32 },
		"n=4096 is more than the ":        func(p *mlp.Problem, _ *mlp.Options) { p.Out = 1 << 12 },
	} {
		p, o := good, mlp.Options{}
		change(&p, &o)
		for _, o.Fused = range []mlp.Fused{mlp.FusedAuto, mlp.FusedOff} {
			plan, err := mlp.Choose(d.Caps(), p, kit.Forward, o)
			require.NoError(t, err)
			require.NotContains(t, plan.String(), "pair")
		}
		o.Fused = mlp.FusedOn
		err := mlp.Supports(d.Caps(), p, kit.Forward, o)
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, "mlp: fused: "+want)
	}
	err := mlp.Supports(d.Caps(), good, kit.Forward, mlp.Options{Fused: mlp.FusedOff + 1})
	require.EqualError(t, err, "mlp: fused=Fused(3) is not one of auto, on, off")
}
