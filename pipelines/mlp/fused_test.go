package mlp_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/fused"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

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
