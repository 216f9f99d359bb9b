package seeds

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	gmmref "github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
)

// Triton Attention Kernel Report: "validates torch.allclose(atol=2e-2, rtol=0)" of grouped
// queries, causal, in bfloat16, and "maximum absolute deviation ≤ 0.031" of the gradients.
func TestGroupedQueries(t *testing.T) {
	for _, format := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		p := attention.Problem{Batch: 2, NumHeads: 8, NumKVHeads: 4, SeqQ: 96, SeqKV: 96, HeadDim: 128, DType: format, Causal: true}
		in := newInputs(p)
		got, want := onDevice(t, in, p, attention.Options{}, true, 1), inFloat64(t, in, p)
		for name, most := range map[string]float64{"o": 2e-2, "dq": 0.031, "dk": 0.031, "dv": 0.031} {
			largest, _ := apart(t, got, want, name)
			require.Less(t, largest, most, "%v %s", format, name)
		}
	}
}

// Triton Attention Kernel Report: "FP32 inputs are automatically downcast". Ours are not.
func TestFloat32(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 128, SeqKV: 128, HeadDim: 64, DType: dtype.Float32}
	in := newInputs(p)
	got, want := onDevice(t, in, p, attention.Options{}, true, 1), inFloat64(t, in, p)
	for _, name := range []string{"o", "dq", "dk", "dv"} {
		largest, _ := apart(t, got, want, name)
		require.Less(t, largest, 1e-5, name)
	}
}

// Custom Triton Kernels, phases 2 to 4: of M + N queries and M keys, "max abs error vs SDPA <
// 1e-2 (BF16), no NaNs", and gradients "within tolerance on small shapes".
func TestRectangular(t *testing.T) {
	const m, n = 64, 100
	p := attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: m + n, SeqKV: m, HeadDim: 64, DType: dtype.BFloat16}
	in := newInputs(p)
	got, want := onDevice(t, in, p, attention.Options{}, true, 1), inFloat64(t, in, p)
	for name, most := range map[string]float64{"o": 1e-2, "dq": 2e-2, "dk": 3e-2, "dv": 3e-2} {
		largest, _ := apart(t, got, want, name)
		require.Less(t, largest, most, name)
	}
}

// Custom Triton Kernels, phase 10: a captured step has "identical outputs vs non-graph run". A
// recording is captured as it is; run again it gives the same bits.
func TestReplay(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 4, NumKVHeads: 2, SeqQ: 70, SeqKV: 70, HeadDim: 64, DType: dtype.BFloat16, Causal: true}
	in := newInputs(p)
	require.Equal(t, onDevice(t, in, p, attention.Options{}, true, 1), onDevice(t, in, p, attention.Options{}, true, 4))
}

// Custom Triton Kernels, phase 8: log-probabilities of mixtures have "no overflow/underflow in
// exp/logsumexp".
func TestMixtures(t *testing.T) {
	d, ctx := vktest.Open(t), context.Background()
	p := gmm.Problem{Tokens: 4, Components: 10}
	tensor := func(data []float32, shape ...int) vk.Tensor {
		return vktest.Values(t, d, dtype.Float32, data, shape...)
	}
	logit, mu, logSigma := make([]float32, 40), make([]float32, 40), make([]float32, 40)
	for i := range logit {
		logit[i] = [4]float32{0, 1000, -1000, 88.8}[i/10] * float32(i%10) // exp of it is no float32
		mu[i], logSigma[i] = float32(i%10), [4]float32{0, -30, 30, 40}[i/10]
	}
	x := gmm.Tensors{
		Logit: tensor(logit, 4, 10), Mu: tensor(mu, 4, 10), LogSigma: tensor(logSigma, 4, 10),
		Y: tensor([]float32{3, 9, -1e10, 1e-10}, 4), LogP: tensor(nil, 4), Loss: tensor(nil, 1),
	}
	c, err := d.NewCmd("mixtures")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, gmm.Forward(c, x, p, gmm.Options{}))
	require.NoError(t, c.Submit(ctx))
	got := make([]float32, 4)
	require.NoError(t, x.LogP.Download(ctx, got))
	want, _ := gmmref.Forward(gmmref.Inputs{
		Logit: float64s(logit), Mu: float64s(mu), LogSigma: float64s(logSigma), Y: []float64{3, 9, -1e10, 1e-10},
	}, p)
	require.InEpsilonSlice(t, want, float64s(got), 1e-5)
}

// Triton Fused Attention on RTX 3060: "max abs error vs reference ~1.95e-03" at B=1, H=8,
// N=1024, D=64 in float16. Custom Flash Attention with OpenAI Triton: "average difference
// 0.000199". One of the eight heads, so that a CPU device is done soon.
func TestHalf(t *testing.T) {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1024, SeqKV: 1024, HeadDim: 64, DType: dtype.Float16}
	in := newInputs(p)
	largest, mean := apart(t, onDevice(t, in, p, attention.Options{}, false, 1), inFloat64(t, in, p), "o")
	require.Less(t, largest, 1.95e-3)
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
