package mlp_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/fused"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A testCase is a problem and a number of heads at a time.
type testCase struct{ tokens, heads, in, hidden, out, atATime int }

var (
	oneCases = []testCase{
		{1, 0, 1, 1, 1, 0}, // one of everything
		{37, 0, 20, 45, 18, 0},
		{70, 0, 16, 33, 5, 0},
		{600, 0, 8, 21, 9, 0},
	}
	headsCases = []testCase{
		{1, 1, 1, 1, 1, 0},
		{37, 5, 20, 45, 3, 2},
		{70, 3, 16, 33, 1, 0},
		{9, 2, 1, 7, 18, 1},
		{50, 3, 17, 21, 8, 2},  // as many outputs as one kernel takes
		{20, 5, 4, 210, 2, 0},  // rows of hidden units with a gap behind them
		{300, 2, 11, 13, 3, 0}, // enough tokens for copies of W1, where those pay
	}
)

// run calls f for the cases in every format, with weight gradients in the format and in float32,
// and all heads at a time or fewer.
func run(t *testing.T, d *vk.Device, impl engine.Impl, list []testCase, f func(t *testing.T, p mlp.Problem, o mlp.Options, layout guard.Layout)) {
	for _, format := range dtype.All() {
		if engine.Supports(d.Caps(), impl, engine.Problem{M: 1, N: 1, K: 1, DType: format, Out: format}) != nil {
			continue
		}
		for i, s := range list {
			if impl == engine.CoopMat && !vktest.Thorough(d) && !slices.Contains(representative(format), i) {
				continue
			}
			p := mlp.Problem{Tokens: s.tokens, Heads: s.heads, In: s.in, Hidden: s.hidden, Out: s.out, DType: format, Grad: dtype.Some(format)}
			if i%2 == 0 {
				p.Grad = dtype.Some(dtype.Float32)
			}
			layout := guard.Layout(i) % guard.Layouts
			t.Run(fmt.Sprintf("%v/%v/%v/layout=%d", impl, format, p, layout), func(t *testing.T) {
				f(t, p, mlp.Options{Impl: impl, HeadsAtATime: s.atATime}, layout)
			})
		}
	}
}

// representative returns the cases that stand for all where kernels on matrices take seconds to
// compile: odd sizes. Path scalar has the others there.
func representative(format dtype.DType) []int {
	if format == dtype.Float32 {
		return []int{1}
	}
	return []int{1, 2}
}

// newCall returns the call of a pass alone.
func newCall(p mlp.Problem, o mlp.Options, pass kit.Pass) *call.MLP {
	return &call.MLP{
		Problem: p, Direction: call.Direction{Backward: pass == kit.Backward}, Impl: o.Impl.String(), Fused: o.Fused,
		HeadsAtATime: o.HeadsAtATime, Products: o.Products, Data: call.Data{Seed: 1, Tuning: o.Tuning},
	}
}

// compare runs a pass alone.
func compare(t *testing.T, d *vk.Device, p mlp.Problem, o mlp.Options, layout guard.Layout, pass kit.Pass) {
	t.Helper()
	c := newCall(p, o, pass)
	c.Workspace = layout != guard.Packed
	call.Test(t, d, c, nil, layout, pass)
}

var passes = []kit.Pass{kit.Forward, kit.Backward}

// TestPasses runs both passes of one perceptron and of heads on every path, with all that can be kept,
// y in float32, products where one kernel would do, and workspaces of the least bytes, full of NaN.
func TestPasses(t *testing.T) {
	d := vktest.Open(t)
	for _, list := range [][]testCase{oneCases, headsCases} {
		for _, impl := range engine.Impls() {
			run(t, d, impl, list, func(t *testing.T, p mlp.Problem, o mlp.Options, layout guard.Layout) {
				for i := range 8 * len(mlp.Keeps()) {
					pass := passes[i&1]
					p.Float32, o.Products, p.Keep = i&2 != 0, i&4 != 0, mlp.Keeps()[i/8]
					switch {
					case p.Float32 && (pass == kit.Backward || p.DType == dtype.Float32):
					case p.Heads == 0 && (o.Products || p.Float32 != (pass == kit.Forward && p.Keep == mlp.KeepPre)):
					case p.Heads > 0 && p.Keep == mlp.KeepHidden:
					default:
						t.Logf("%v keep=%v products=%v float32=%v", pass, p.Keep, o.Products, p.Float32)
						compare(t, d, p, o, layout, pass)
					}
				}
			})
		}
	}
}

// TestBackwardLoss has a loss whose gradient is a copy of a given one: for one perceptron, all
// heads at a time and fewer, with and without silu(pre) in memory.
func TestBackwardLoss(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range engine.Impls() {
		run(t, d, impl, slices.Concat(headsCases, oneCases), func(t *testing.T, p mlp.Problem, o mlp.Options, layout guard.Layout) {
			m := newCall(p, o, kit.Backward)
			c, _, err := call.Case(d.Caps(), m, kit.Backward, call.Inputs(m))
			require.NoError(t, err)
			c.Layout = layout
			for _, o.Products = range []bool{false, true} {
				t.Logf("products=%v", o.Products)
				c.Test(t, d, func(c *vk.Cmd, list map[string]vk.Tensor) error {
					var t mlp.Tensors
					var g mlp.Gradients
					call.Bind(list, &t, &g)
					given := g.DY
					g.DY = vk.Tensor{}
					return mlp.BackwardLoss(c, t, g, func(c *vk.Cmd, dy, y vk.Tensor) error { return engine.Pad(c, matrices(dy), matrices(given)) }, p, o)
				})
			}
		})
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
	p := mlp.Problem{Tokens: 25400, In: 16, Hidden: 101, Out: 16, DType: dtype.Float16, Grad: dtype.Some(dtype.Float32)}
	plan, err := mlp.Choose(d.Caps(), p, kit.Forward, mlp.Options{})
	vktest.Require(t, engine.CoopMat.String(), err)
	t.Log(plan)
	for _, pass := range passes {
		compare(t, d, p, mlp.Options{}, guard.Packed, pass)
	}
}

// TestUnits runs both passes with hidden units that are kept in rows with zeros behind, and wants an
// error where the products have no fragments.
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
	call.Test(t, d, newCall(p, o, kit.Forward), nil, guard.Packed, passes...)
}

// TestChoice wants one kernel in place of products on matrices where outputs are few. It wants
// memory for hidden units with Options.Products, with many outputs, and without heads.
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
		"mlp: heads_at_a_time=-1 is negative":                             func(p *mlp.Problem, o *mlp.Options) { o.HeadsAtATime = -1 },
		"mlp: hidden=0 is not from 1 to 1073741824":                       func(p *mlp.Problem, o *mlp.Options) { p.Hidden = 0 },
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

// TestFused runs the forward pass as one kernel, and wants the plan to say so: x in shared memory, in
// the cache, and both; grids of subgroups for hidden units of one row and of several; one chunk of
// hidden units in shared memory and two; blocks that share rows, all of them or those from a row on.
// Sizes are 1, whole blocks and chunks, and tails of all four.
func TestFused(t *testing.T) {
	d := vktest.Open(t)
	for format, shape := range chipstest.MatrixFormats(t, d) {
		m := int(shape.M)
		for i, config := range []string{
			"pair s2 t2x2 h1x1 x4 ahead2",
			"pair s2 t1x3 h1x3 x0 ahead3 loadahead1 double",
			fmt.Sprintf("pair s3 t2x2 h2x2 x1 ahead2 splits2 rows%d", 2*m),
			"pair s4 t2x1 h1x2 x2 ahead4 double splits3",
			"",
		} {
			columns := 4 * m
			if c, err := fused.ParseConfig(config); err == nil {
				columns = c.Subgroups * c.TilesN * m
			}
			for j, p := range []mlp.Problem{
				{Tokens: 1, In: 1, Hidden: 1, Out: 1, Float32: true},
				{Tokens: 4 * m, In: 4 * m, Hidden: 12 * m, Out: columns},
				{Tokens: 5*m + 3, In: 5*m + 1, Hidden: 9*m + 5, Out: columns - 3},
				{Tokens: 3*m - 1, In: m - 1, Hidden: 14*m - 1, Out: 5, Float32: true},
			} {
				if (i+j)%2 == 0 && !vktest.Thorough(d) {
					continue // every other case of a configuration; the next one has the others
				}
				p.DType = format
				c := newCall(p, mlp.Options{Fused: mlp.FusedOn}, kit.Forward)
				c.FusedConfig, c.Workspace = config, j%2 == 0
				t.Run(fmt.Sprintf("%v/%s", p, config), func(t *testing.T) {
					plan, err := c.Choose(d.Caps(), kit.Forward)
					vktest.Require(t, engine.CoopMat.String(), err)
					require.Regexp(t, `^pair s\d`, plan.String())
					call.Test(t, d, c, nil, guard.Layout(j)%guard.Layouts, kit.Forward)
				})
			}
		}
	}
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
