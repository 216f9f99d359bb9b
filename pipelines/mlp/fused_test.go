package mlp_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestFused runs the forward pass as one kernel, with and without a workspace of the caller's,
// and wants the plan to say so.
func TestFused(t *testing.T) {
	d := vktest.Open(t)
	run(t, d, engine.CoopMat, oneCases, func(t *testing.T, p mlp.Problem, o mlp.Options, layout guard.Layout) {
		if p.DType == dtype.Float32 {
			return // TestFusedUnsupported has it
		}
		o = mlp.Options{Fused: mlp.FusedOn}
		plan, err := mlp.Choose(d.Caps(), p, kit.Forward, o)
		vktest.Require(t, engine.CoopMat.String(), err)
		require.Regexp(t, `^pair s\d`, plan.String())
		m := newCall(p, o, kit.Forward)
		for _, m.Workspace = range []bool{false, true} {
			call.Test(t, d, m, nil, layout, kit.Forward)
		}
	})
}

// TestFusedUnsupported wants the reason where there is no such kernel, and two products where the
// choice is free.
func TestFusedUnsupported(t *testing.T) {
	d := vktest.Open(t)
	good := mlp.Problem{Tokens: 37, In: 20, Hidden: 45, Out: 18, DType: dtype.Float16}
	vktest.Require(t, engine.CoopMat.String(), engine.Supports(d.Caps(), engine.CoopMat, engine.Problem{M: 1, N: 1, K: 1, DType: good.DType, Out: good.DType}))
	pre, hidden, wide, single, heads := good, good, good, good, good
	pre.Keep, hidden.Keep = mlp.KeepPre, mlp.KeepHidden
	wide.Out = 1 << 12
	single.DType = dtype.Float32
	heads.Heads = 2
	for _, x := range []struct {
		p    mlp.Problem
		o    mlp.Options
		want string
	}{
		{pre, mlp.Options{}, "mlp: fused: the kernel does not write pre"},
		{hidden, mlp.Options{}, "mlp: fused: the kernel does not write pre"},
		{heads, mlp.Options{}, "mlp: fused: the kernel has no heads"},
		{good, mlp.Options{Impl: engine.Scalar}, "mlp: fused: path scalar has no such kernel"},
		{single, mlp.Options{}, "mlp: fused: float32 matrices have no kernel"},
		{wide, mlp.Options{}, "mlp: fused: n=4096 is more than the "},
	} {
		for _, x.o.Fused = range []mlp.Fused{mlp.FusedAuto, mlp.FusedOff} {
			plan, err := mlp.Choose(d.Caps(), x.p, kit.Forward, x.o)
			require.NoError(t, err)
			require.NotContains(t, plan.String(), "pair")
		}
		x.o.Fused = mlp.FusedOn
		err := mlp.Supports(d.Caps(), x.p, kit.Forward, x.o)
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, x.want)
	}
	err := mlp.Supports(d.Caps(), good, kit.Forward, mlp.Options{Fused: mlp.FusedOff + 1})
	require.EqualError(t, err, "mlp: fused=Fused(3) is not one of auto, on, off")
}
