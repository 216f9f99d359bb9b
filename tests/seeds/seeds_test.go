package seeds

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// TestClaims wants no element to be further off than a project says.
func TestClaims(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	const report, kernels = "Triton Attention Kernel Report", "Custom Triton Kernels"
	gqa := attention.Problem{Batch: 2, NumHeads: 8, NumKVHeads: 4, SeqQ: 96, SeqKV: 96, HeadDim: 128, DType: dtype.BFloat16, Causal: true}
	gqa16 := gqa
	gqa16.DType = dtype.Float16
	type most = map[string]float64
	for _, x := range []struct {
		project, claim string
		p              attention.Problem
		most           most
	}{
		{report, "torch.allclose(atol=2e-2, rtol=0), maximum absolute deviation of gradients ≤ 0.031", gqa, most{"o": 2e-2, "dq": 0.031, "dk": 0.031, "dv": 0.031}},
		{report, "the same", gqa16, most{"o": 2e-2, "dq": 0.031, "dk": 0.031, "dv": 0.031}},
		{
			report, "FP32 inputs are automatically downcast: ours are not",
			attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 128, SeqKV: 128, HeadDim: 64}, most{"o": 1e-5, "dq": 1e-5, "dk": 1e-5, "dv": 1e-5},
		},
		{
			kernels, "phases 2 to 4, M + N queries and M keys: max abs error vs SDPA < 1e-2 (BF16), no NaNs, gradients within tolerance on small shapes",
			attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 164, SeqKV: 64, HeadDim: 64, DType: dtype.BFloat16}, most{"o": 1e-2, "dq": 2e-2, "dk": 3e-2, "dv": 3e-2},
		},
		{ // one of its eight heads, so that a CPU device is done soon
			"Triton Fused Attention on RTX 3060", "max abs error vs reference ~1.95e-03 at B=1, H=8, N=1024, D=64",
			attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1024, SeqKV: 1024, HeadDim: 64, DType: dtype.Float16}, most{"o": 1.95e-3},
		},
	} {
		t.Run(x.project+" "+x.claim, func(t *testing.T) {
			for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
				if pass == kit.Backward && len(x.most) == 1 {
					continue
				}
				c, record, err := call.Case(d.Caps(), newCall(x.p, pass), pass, call.Inputs(newCall(x.p, pass)))
				require.NoError(t, err)
				found := 0
				for i := range c.Tensors {
					if y := &c.Tensors[i]; x.most[y.Name] > 0 && y.Want != nil {
						y.Bound, y.Bounds = x.most[y.Name], nil
						found++
					}
				}
				require.Positive(t, found)
				c.Test(t, d, record)
			}
		})
	}
}

func newCall(p attention.Problem, pass kit.Pass) *call.Attention {
	return &call.Attention{Problem: p, Direction: call.Direction{Backward: pass == kit.Backward}, Data: call.Data{Seed: 1, Kind: call.NormalKind}}
}

// Custom Flash Attention with OpenAI Triton: "average difference 0.000199".
func TestMean(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1024, SeqKV: 1024, HeadDim: 64, DType: dtype.Float16}
	a := newCall(p, kit.Forward)
	x := call.Inputs(a)
	c, record, err := call.Case(d.Caps(), a, kit.Forward, x)
	require.NoError(t, err)
	got, err := c.Outputs(t.Context(), guard.Device{Device: d}, record)
	require.NoError(t, err)
	want, ok := a.Want(x, kit.Forward).Of("o")
	require.True(t, ok)
	require.Len(t, got["o"], len(want.Want))
	mean := 0.0
	for i, w := range want.Want {
		mean += math.Abs(got["o"][i]-w) / float64(len(want.Want))
	}
	require.Less(t, mean, 0.000199)
}

// Custom Flash Attention with OpenAI Triton: tiling "avoids writing the full attention matrix
// to the main memory". For a million tokens that would be two terabytes, which no device has.
func TestNoMatrix(t *testing.T) {
	d := vktest.Open(t)
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1 << 20, SeqKV: 1 << 20, HeadDim: 64, DType: dtype.Float16}
	tensor := func() vk.Tensor { // of a million tokens, all of them the same, without the memory of them
		x := vktest.Tensor(t, d, p.DType, 1, 1, 1, p.HeadDim)
		x.Shape, x.Strides = []int{1, 1, p.SeqQ, p.HeadDim}, []int{0, 0, 0, 1}
		return x
	}
	o := vktest.Tensor(t, d, p.DType, 1, 1, p.SeqQ, p.HeadDim)
	c, err := d.NewCmd("long")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, attention.Forward(c, attention.Tensors{O: o, Q: tensor(), K: tensor(), V: tensor()}, p, attention.Options{}))
	require.NoError(t, c.Err())
}
