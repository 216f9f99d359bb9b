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
						m := &call.Mixture{
							Problem: p, Impl: impl.String(), Groups: s.groups, Outputs: x.outputs, HeadsAtATime: s.atATime,
							LogP: true, Loss: true, DLoss: x.dloss, Data: call.Data{Workspace: i%2 > 0},
						}
						c, record, err := call.Case(d.Caps(), m, x.pass, call.Inputs(m))
						require.NoError(t, err)
						if c.Layout = layout; impl == engine.CoopMat && x.pass == kit.Forward && !x.outputs {
							var in ref.Inputs
							call.Bind(call.Inputs(m), &in)
							tighten(&c, p, in)
						}
						t.Logf("%+v", x)
						c.Test(t, d, record)
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

// TestOptions wants errors that name the value of a problem or an option that breaks a rule.
func TestOptions(t *testing.T) {
	caps := vktest.Open(t).Caps()
	for want, change := range map[string]func(p *mixture.Problem, o *mixture.Options){
		"mixture: groups=-1 is negative":          func(p *mixture.Problem, o *mixture.Options) { o.Groups = -1 },
		"mixture: heads_at_a_time=-1 is negative": func(p *mixture.Problem, o *mixture.Options) { o.HeadsAtATime = -1 },
		"mixture: heads=0 is not from 1 to":       func(p *mixture.Problem, o *mixture.Options) { p.Heads = 0 },
		"mixture: hidden=0 is not from 1 to":      func(p *mixture.Problem, o *mixture.Options) { p.Hidden = 0 },
		"mixture: grad=bool is not one of":        func(p *mixture.Problem, o *mixture.Options) { p.Grad = dtype.Some(dtype.Bool) },
		"by heads=1048576 are more than":          func(p *mixture.Problem, o *mixture.Options) { p.Tokens, p.Heads = 1<<20, 1<<20 },
	} {
		p, o := mixture.Problem{Tokens: 2, Heads: 6, In: 5, Hidden: 4}, mixture.Options{}
		change(&p, &o)
		require.ErrorContains(t, mixture.Supports(caps, p, kit.Forward, o), want)
	}
}
