package bench

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

func TestNaiveLayout(t *testing.T) {
	for _, typ := range []string{"f16", "bf16", "f32"} {
		module, err := shaders.Get("naive_attention", typ)
		require.NoError(t, err)
		layouttest.Check(t, module, naiveParams{}, naiveSpec{}, "Q", "K", "V", "O", "LSE")
	}
}

// TestNaive compares the baseline with the reference, on masks, groups of heads
// and rows that see nothing.
func TestNaive(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	for _, p := range []attention.Problem{
		{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 70, SeqKV: 50, HeadDim: 16, DType: dtype.Float32, Causal: true},
		{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: 5, SeqKV: 130, HeadDim: 40, DType: dtype.Float32, Causal: true, CausalAlign: attention.TopLeft},
		{Batch: 1, NumHeads: 3, NumKVHeads: 1, SeqQ: 66, SeqKV: 33, HeadDim: 8, DType: dtype.Float16, Scale: -0.5},
		{Batch: 2, NumHeads: 1, NumKVHeads: 1, SeqQ: 3, SeqKV: 9, HeadDim: 24, DType: dtype.BFloat16, Causal: true},
	} {
		results, err := Run(context.Background(), d, Case{Op: opOf(t, p), Impls: []string{"unfused", Naive}, Protocol: quick()}, nil)
		require.NoError(t, err)
		require.Len(t, results, 2)
		x := results[1]
		require.Equal(t, Naive, x.Impl)
		require.Equal(t, StatusOK, x.Status, "%v: %s", p, x.Reason)
		require.Len(t, x.Timing.DeviceNS, 3)
		require.Positive(t, x.Check.MaxAbs)
	}
}

func TestFeasibleNaive(t *testing.T) {
	caps := vk.Caps{Type: vk.DiscreteGPU, ScalarBlockLayout: true, Storage16: true, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535}}
	good := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: 64, SeqKV: 64, HeadDim: 64, DType: dtype.Float16}
	require.NoError(t, feasibleNaive(&caps, good, Forward))
	require.ErrorContains(t, feasibleNaive(&caps, good, Backward), "it has no backward pass")
	for _, x := range []struct {
		want   string
		change func(c *vk.Caps, p *attention.Problem)
	}{
		{"it has no features", func(_ *vk.Caps, p *attention.Problem) { p.Sinks = true }},
		{"float16 needs 16-bit storage", func(c *vk.Caps, _ *attention.Problem) { c.Storage16 = false }},
		{"the device has no scalar block layout", func(c *vk.Caps, _ *attention.Problem) { c.ScalarBlockLayout = false }},
		{"more batches or heads", func(_ *vk.Caps, p *attention.Problem) { p.Batch = 70000 }},
		{"left out, a call would take seconds", func(_ *vk.Caps, p *attention.Problem) { p.SeqQ, p.SeqKV = 70000, 70000 }},
		{"left out, a call would take seconds", func(c *vk.Caps, p *attention.Problem) { c.Type, p.SeqQ, p.SeqKV = vk.CPU, 5000, 5000 }},
		{"more elements than it counts", func(_ *vk.Caps, p *attention.Problem) { p.SeqQ, p.SeqKV = 1<<30, 1 }},
	} {
		c, p := caps, good
		x.change(&c, &p)
		require.ErrorContains(t, feasibleNaive(&c, p, Forward), x.want)
	}
}
