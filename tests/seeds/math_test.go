package seeds

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// normal returns n normal numbers as a tensor of the problem's format holds them.
func normal(rng *rand.Rand, p attention.Problem, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = p.DType.Round(float32(rng.NormFloat64()))
	}
	return x
}

// inputs are q, k, v and the gradient of o, (batch, heads, seq, dim) one after the other.
type inputs struct{ q, k, v, do []float32 }

func newInputs(p attention.Problem) inputs {
	rng := rand.New(rand.NewPCG(1, uint64(p.SeqQ)))
	queries, keys := p.Batch*p.NumHeads*p.SeqQ*p.HeadDim, p.Batch*p.NumKVHeads*p.SeqKV*p.HeadDim
	return inputs{normal(rng, p, queries), normal(rng, p, keys), normal(rng, p, keys), normal(rng, p, queries)}
}

// results are o and the gradients of q, k and v, by names.
type results map[string][]float64

// inFloat64 is attention in float64, and its gradients.
func inFloat64(t *testing.T, in inputs, p attention.Problem) results {
	t.Helper()
	o, x := make([]float64, len(in.q)), ref.Inputs[float32]{Q: in.q, K: in.k, V: in.v}
	require.NoError(t, ref.Forward(o, nil, x, p, nil))
	g, _, err := ref.Backward(ref.Upstream[float32]{DO: in.do}, x, p)
	require.NoError(t, err)
	return results{"o": o, "dq": g.DQ, "dk": g.DK, "dv": g.DV}
}

func float64s(x []float32) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = float64(x[i])
	}
	return y
}

// onDevice computes the same with package attention, and submits the recording some times. The
// options are those of the backward pass.
func onDevice(t *testing.T, in inputs, p attention.Problem, o attention.Options, backward bool, runs int) results {
	t.Helper()
	d, ctx := vktest.Open(t, vktest.NoValidation), context.Background()
	tensor := func(heads, seq int, data []float32) vk.Tensor {
		return vktest.Values(t, d, p.DType, data, p.Batch, heads, seq, p.HeadDim)
	}
	q, k, v := tensor(p.NumHeads, p.SeqQ, in.q), tensor(p.NumKVHeads, p.SeqKV, in.k), tensor(p.NumKVHeads, p.SeqKV, in.v)
	out := map[string]vk.Tensor{"o": tensor(p.NumHeads, p.SeqQ, nil)}
	lse := vktest.Tensor(t, d, dtype.Float32, p.Batch, p.NumHeads, p.SeqQ)
	c, err := d.NewCmd("step")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	on := attention.Tensors{Q: q, K: k, V: v, O: out["o"], LSE: lse}
	require.NoError(t, attention.Forward(c, on, p, attention.Options{}))
	if backward {
		out["dq"], out["dk"], out["dv"] = tensor(p.NumHeads, p.SeqQ, nil), tensor(p.NumKVHeads, p.SeqKV, nil), tensor(p.NumKVHeads, p.SeqKV, nil)
		g := attention.Gradients{DO: tensor(p.NumHeads, p.SeqQ, in.do), DQ: out["dq"], DK: out["dk"], DV: out["dv"]}
		require.NoError(t, attention.Backward(c, on, g, p, o))
	}
	for range runs {
		require.NoError(t, c.Submit(ctx))
	}
	r := results{}
	for name, x := range out {
		data := make([]float32, x.NumElements())
		require.NoError(t, x.Download(ctx, data))
		r[name] = float64s(data)
	}
	return r
}

// apart returns the largest and the mean difference of the tensors that two results share. The
// difference to a NaN is infinite.
func apart(t *testing.T, got, want results, name string) (largest, mean float64) {
	t.Helper()
	require.Len(t, got[name], len(want[name]))
	for i, x := range got[name] {
		off := math.Abs(x - want[name][i])
		if math.IsNaN(off) {
			off = math.Inf(1)
		}
		largest, mean = max(largest, off), mean+off/float64(len(got[name]))
	}
	return largest, mean
}
