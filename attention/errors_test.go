package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestErrors has what TestArguments of package tests does not ask for: problems, options, a hint, and memory.
func TestErrors(t *testing.T) {
	d := vktest.Open(t)
	small, err := d.NewBuffer("small", 191)
	require.NoError(t, err)
	defer small.Close()
	for _, row := range []struct {
		pass   kit.Pass
		change func(p *attention.Problem, o *attention.Options, t map[string]vk.Tensor)
		want   string
	}{
		{kit.Forward, func(p *attention.Problem, _ *attention.Options, _ map[string]vk.Tensor) { p.NumKVHeads = 3 }, "num_heads=4 is not a multiple of num_kv_heads=3"},
		{kit.Backward, func(p *attention.Problem, _ *attention.Options, _ map[string]vk.Tensor) { p.HeadDim = 20 }, "head_dim=20 is not a multiple of 8"},
		{kit.Forward, func(_ *attention.Problem, o *attention.Options, _ map[string]vk.Tensor) {
			o.Config = &attention.Config{}
		}, "impl auto is not a path"},
		{kit.Backward, func(_ *attention.Problem, o *attention.Options, _ map[string]vk.Tensor) {
			o.Config = &attention.Config{}
		}, "Options.Config is of the forward pass, the backward pass takes Options.BackwardConfig"},
		{kit.Backward, func(_ *attention.Problem, o *attention.Options, _ map[string]vk.Tensor) { o.Workspace = small }, "workspace has 191 bytes, want 192"},
		{kit.Forward, func(_ *attention.Problem, _ *attention.Options, t map[string]vk.Tensor) {
			t["q"] = t["q"].Permute(0, 2, 1, 3)
		},
			"q has shape [2 3 4 8] and strides [96 8 24 1], want shape [2 4 3 8]: (batch, num_heads, seq_q, head_dim); Tensor.Permute(0, 2, 1, 3) is a view with these axes"},
	} {
		c := &call.Attention{Problem: attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float16}, Direction: call.Direction{Backward: row.pass == kit.Backward}}
		on, o := uploaded(t, d, c, call.Inputs(c)), attention.Options{}
		row.change(&c.Problem, &o, on)
		c.Impl, c.Config, c.BackwardConfig = o.Impl, o.Config, o.BackwardConfig
		cmd, err := d.NewCmd("errors")
		require.NoError(t, err)
		require.ErrorContains(t, c.Record(cmd, on, o.Workspace, row.pass), "attention: "+row.want)
		cmd.Close()
	}
}
