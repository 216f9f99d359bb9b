package mixture_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/mixture/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// caseOf returns a pass as a case of package guard, and what records it in a workspace. The inputs
// x are drawn if they are nil.
func caseOf(t *testing.T, d *vk.Device, m *call.Mixture, x call.Values, pass kit.Pass) (guard.Case, func(*vk.Buffer) guard.Record) {
	t.Helper()
	m.LogP, m.Loss, m.Seed = true, true, 1
	if x == nil {
		x = call.Inputs(m)
	}
	c, _, err := call.Case(d.Caps(), m, pass, x)
	require.NoError(t, err)
	return c, func(workspace *vk.Buffer) guard.Record {
		return func(c *vk.Cmd, x map[string]vk.Tensor) error { return m.Record(c, x, workspace, pass) }
	}
}

// TestPasses runs both passes on every path, in every format and layout: sizes 1 and odd ones,
// groups of heads that are equal and that are not, backward with all heads at a time and with
// fewer.
func TestPasses(t *testing.T) {
	d := vktest.Open(t)
	for _, impl := range engine.Impls() {
		for _, format := range dtype.All() {
			if engine.Supports(d.Caps(), impl, engine.Problem{M: 1, N: 1, K: 1, DType: format, Out: format}) != nil {
				continue
			}
			for i, s := range []struct{ tokens, heads, in, hidden, groups, atATime int }{
				{1, 1, 1, 1, 0, 0}, // one of everything
				{37, 5, 20, 45, 2, 0},
				{70, 3, 16, 33, 3, 2},
				{9, 2, 3, 17, 0, 1},
				{300, 10, 11, 13, 4, 0}, // enough tokens for copies of w1, where those pay
			} {
				if impl == engine.CoopMat && !vktest.Thorough(d) && i != 1 && (i != 2 || format == dtype.Float32) {
					continue // path scalar has them, and compiles in no time
				}
				p := mixture.Problem{Tokens: s.tokens, Heads: s.heads, In: s.in, Hidden: s.hidden, DType: format, Grad: dtype.Some(dtype.All()[i%3])}
				layout := guard.Layout(i) % guard.Layouts
				t.Run(fmt.Sprintf("%v/%v/groups=%d/layout=%d", impl, p, s.groups, layout), func(t *testing.T) {
					for _, x := range []struct {
						pass    kit.Pass
						outputs bool
						dloss   float64
					}{{kit.Forward, false, 0}, {kit.Forward, true, 0}, {kit.Backward, false, []float64{0, -2.5}[i%2]}} {
						m := &call.Mixture{Problem: p, Impl: impl.String(), Groups: s.groups, Outputs: x.outputs, HeadsAtATime: s.atATime, DLoss: x.dloss}
						c, record := caseOf(t, d, m, nil, x.pass)
						if c.Layout = layout; impl == engine.CoopMat && x.pass == kit.Forward && !x.outputs {
							var in ref.Inputs
							call.Bind(call.Inputs(m), &in)
							tighten(&c, p, in)
						}
						t.Logf("%+v", x)
						c.Test(t, d, record(nil))
					}
				})
			}
		}
	}
}

// tighten makes the bounds of a forward pass those of float32 from the operands on: nothing is
// rounded in between. Matrix units may truncate sums, so the bounds are four times as wide.
func tighten(c *guard.Case, p mixture.Problem, in ref.Inputs) {
	p.DType = dtype.Float32
	b := ref.ForwardBounds(in, p)
	for i := range c.Tensors {
		switch t := &c.Tensors[i]; t.Name {
		case "log_p":
			t.Bound = min(t.Bound, 4*b.LogP)
		case "loss":
			t.Bound = min(t.Bound, 4*b.Loss)
		}
	}
}

// TestWorkspace runs both passes in workspaces full of NaN, and wants one that is too small to be
// refused.
func TestWorkspace(t *testing.T) {
	d := vktest.Open(t)
	p := mixture.Problem{Tokens: 37, Heads: 3, In: 20, Hidden: 45, DType: dtype.Float16, Grad: dtype.Some(dtype.Float32)}
	for _, impl := range engine.Impls() {
		for i, pass := range []kit.Pass{kit.Forward, kit.Backward, kit.Backward} {
			opt := mixture.Options{Impl: impl, Groups: 2, HeadsAtATime: i}
			bytes, err := mixture.Workspace(d.Caps(), p, pass, opt)
			if errors.Is(err, vk.ErrUnsupported) {
				continue
			}
			require.NoError(t, err)
			c, record := caseOf(t, d, &call.Mixture{Problem: p, Impl: impl.String(), Groups: 2, HeadsAtATime: i}, nil, pass)
			c.TestWorkspace(t, d, bytes, record)
		}
	}
}

// TestForwardChoice wants one kernel on matrices, whose memory does not grow with the heads. It
// wants outputs in memory where they are asked for or nothing else runs.
func TestForwardChoice(t *testing.T) {
	d := vktest.Open(t)
	p := mixture.Problem{Tokens: 1024, Heads: 4, In: 64, Hidden: 512, DType: dtype.Float16, Grad: dtype.Some(dtype.Float16)}
	for _, impl := range engine.Impls() {
		opt := mixture.Options{Impl: impl, Groups: 1}
		plan, err := mixture.Choose(d.Caps(), p, kit.Forward, opt)
		if errors.Is(err, vk.ErrUnsupported) {
			continue
		}
		require.NoError(t, err)
		if impl != engine.CoopMat {
			require.Contains(t, plan.String(), "outputs in memory")
			continue
		}
		require.Contains(t, plan.String(), "groups1")
		p.Heads *= 2
		more, err := mixture.Workspace(d.Caps(), p, kit.Forward, opt)
		require.NoError(t, err)
		require.Equal(t, plan.Workspace(), more)
		opt.Outputs = true
		plan, err = mixture.Choose(d.Caps(), p, kit.Forward, opt)
		require.NoError(t, err)
		require.Contains(t, plan.String(), "outputs in memory")
		plan, err = mixture.Choose(d.Caps(), p, kit.Backward, opt)
		require.NoError(t, err)
		require.Contains(t, plan.String(), "skinny")
	}
}

// TestKernels wants a call to run the modules of its plan, but for copies of operands.
func TestKernels(t *testing.T) {
	d := vktest.Open(t)
	p := mixture.Problem{Tokens: 64, Heads: 3, In: 16, Hidden: 32, DType: dtype.Float16, Grad: dtype.Some(dtype.Float16)}
	for _, impl := range engine.Impls() {
		for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
			plan, err := mixture.Choose(d.Caps(), p, pass, mixture.Options{Impl: impl})
			if errors.Is(err, vk.ErrUnsupported) {
				continue
			}
			require.NoError(t, err)
			c, record := caseOf(t, d, &call.Mixture{Problem: p, Impl: impl.String()}, nil, pass)
			c.TestKernels(t, d, plan, record(nil))
		}
	}
}

// TestArguments wants errors that name the value or the tensor that does not fit.
func TestArguments(t *testing.T) {
	d := vktest.Open(t)
	p := mixture.Problem{Tokens: 2, Heads: 6, In: 5, Hidden: 4}
	c, err := d.NewCmd("arguments")
	require.NoError(t, err)
	defer c.Close()
	tensor := func(shape ...int) vk.Tensor { return vktest.Tensor(t, d, dtype.Float32, shape...) }
	good := mixture.Tensors{X: tensor(2, 5), W1: tensor(6, 5, 4), W2: tensor(6, 4, 3), Y: tensor(2), LogP: tensor(2), Loss: tensor(1)}
	gradients := mixture.Gradients{DX: tensor(2, 5), DW1: tensor(6, 5, 4), DW2: tensor(6, 4, 3)}
	forward := func(change func(t *mixture.Tensors, p *mixture.Problem, o *mixture.Options)) error {
		t, p, o := good, p, mixture.Options{}
		change(&t, &p, &o)
		return mixture.Forward(c, t, p, o)
	}
	backward := func(change func(t *mixture.Tensors, g *mixture.Gradients)) error {
		t, g := good, gradients
		change(&t, &g)
		return mixture.Backward(c, t, g, p, mixture.Options{})
	}
	require.NoError(t, forward(func(t *mixture.Tensors, p *mixture.Problem, o *mixture.Options) {}))
	require.NoError(t, forward(func(t *mixture.Tensors, p *mixture.Problem, o *mixture.Options) {
		t.LogP, t.Loss = vk.Tensor{}, vk.Tensor{}
	}))
	require.NoError(t, backward(func(t *mixture.Tensors, g *mixture.Gradients) {}))
	for _, x := range []struct {
		change func(t *mixture.Tensors, p *mixture.Problem, o *mixture.Options)
		want   string
	}{
		{func(t *mixture.Tensors, p *mixture.Problem, o *mixture.Options) { t.W1 = t.W2 }, "mixture: w1 has shape [6 4 3]"},
		{func(t *mixture.Tensors, p *mixture.Problem, o *mixture.Options) { t.Y = t.Loss }, "mixture: y has shape [1]"},
		{func(t *mixture.Tensors, p *mixture.Problem, o *mixture.Options) { t.LogP = t.Y }, "mixture: log_p overlaps y: outputs need memory of their own"},
		{func(t *mixture.Tensors, p *mixture.Problem, o *mixture.Options) { o.Groups = -1 }, "mixture: groups=-1 is negative"},
		{func(t *mixture.Tensors, p *mixture.Problem, o *mixture.Options) { o.HeadsAtATime = -1 }, "mixture: heads_at_a_time=-1 is negative"},
		{func(t *mixture.Tensors, p *mixture.Problem, o *mixture.Options) { p.Heads = 0 }, "mixture: heads=0 is not from 1 to"},
	} {
		require.ErrorContains(t, forward(x.change), x.want)
	}
	require.ErrorContains(t, backward(func(t *mixture.Tensors, g *mixture.Gradients) { g.DX = t.X }), "mixture: dx overlaps x")
	require.ErrorContains(t, backward(func(t *mixture.Tensors, g *mixture.Gradients) { g.DLoss = t.Y }), "mixture: dloss has shape [2]")
}
