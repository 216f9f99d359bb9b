package attention_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestPlan wants a Plan to name the modules that a recording has, and memory that is enough.
func TestPlan(t *testing.T) {
	d := vktest.Open(t)
	plain := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 20, SeqKV: 70, HeadDim: 8, DType: dtype.Float16}
	features := plain
	features.Sinks, features.Bias.On = true, true
	hidden := plain
	hidden.Causal, hidden.CausalAlign, hidden.SeqQ = true, attention.TopLeft, 5
	few := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 1, SeqKV: 700, HeadDim: 8, DType: dtype.Float16}
	decode := attention.DecodeConfig{Impl: attention.Scalar, Rows: 2, Subgroups: 2, Groups: 3}
	split := attention.Config{Impl: attention.Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 16, ValueRows: 4, Splits: 2}
	fused := attention.BackwardConfig{Impl: attention.CoopMat2, Fused: attention.BackwardTile{Subgroups: 4, RowTiles: 1, Stream: 16}}
	for _, c := range []struct {
		p   attention.Problem
		opt attention.Options
	}{
		{plain, attention.Options{Impl: attention.Scalar}}, {features, attention.Options{Impl: attention.Scalar}},
		{plain, attention.Options{Impl: attention.Unfused}}, {features, attention.Options{Impl: attention.Unfused}}, {hidden, attention.Options{Impl: attention.Unfused}},
		{plain, attention.Options{Impl: attention.CoopMat2}}, {plain, attention.Options{Impl: attention.CoopMat}},
		{plain, attention.Options{Config: &split}}, {plain, attention.Options{BackwardConfig: &fused}},
		{few, attention.Options{}}, {features, attention.Options{DecodeConfig: &decode}},
	} {
		for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
			if pass == kit.Forward && c.opt.BackwardConfig != nil || pass == kit.Backward && (c.opt.Config != nil || c.opt.DecodeConfig != nil) {
				continue
			}
			plan, err := attention.Choose(d.Caps(), c.p, pass, c.opt)
			if err != nil {
				t.Logf("%v, %v: %v", c.p, pass, err)
				continue
			}
			x := newBackwardArgs(t, d, c.p)
			x.opt = c.opt
			if c.p.Sinks {
				x.in.Sinks, x.in.Bias = newTensor(t, d, dtype.Float32, c.p.SinksShape()), newTensor(t, d, dtype.Float32, c.p.BiasShape())
				x.g.DSinks, x.g.DBias = newTensor(t, d, dtype.Float32, c.p.SinksShape()), newTensor(t, d, dtype.Float32, c.p.BiasShape())
			}
			if plan.Workspace() > 0 {
				x.opt.Workspace, err = d.NewBuffer("workspace", plan.Workspace())
				require.NoError(t, err)
				t.Cleanup(x.opt.Workspace.Close)
			}
			cmd, err := d.NewCmd("plan")
			require.NoError(t, err)
			if pass == kit.Forward {
				err = attention.Forward(cmd, x.tensors(), c.p, x.opt)
			} else {
				err = x.record(cmd)
			}
			require.NoError(t, err)
			var ran []string
			for _, m := range cmd.Modules() {
				ran = append(ran, m.Name)
			}
			cmd.Close()
			named := slices.Sorted(slices.Values(plan.Kernels()))
			require.Equal(t, ran, named, "%v, %v: %v", c.p, pass, plan)
		}
	}
	_, err := attention.Choose(d.Caps(), plain, kit.Pass(7), attention.Options{})
	require.EqualError(t, err, "attention: Pass(7) is neither the forward nor the backward pass")
	require.ErrorIs(t, attention.Supports(&vk.Caps{}, plain, kit.Forward, attention.Options{}), vk.ErrUnsupported)
}
