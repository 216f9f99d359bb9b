package seeds

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
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

// inFloat64 is softmax(q kᵀ / sqrt(dim)) v with the matrix of weights written out, which is
// what PyTorch calls MATH, and its gradients.
func inFloat64(in inputs, p attention.Problem) results {
	d, group := p.HeadDim, p.NumHeads/p.NumKVHeads
	r := results{"o": make([]float64, len(in.q)), "dq": make([]float64, len(in.q)), "dk": make([]float64, len(in.k)), "dv": make([]float64, len(in.v))}
	scale := 1 / math.Sqrt(float64(d))
	weights := make([]float64, p.SeqKV)
	for bh := range p.Batch * p.NumHeads {
		kv := (bh/p.NumHeads*p.NumKVHeads + bh%p.NumHeads/group) * p.SeqKV * d
		for i := range p.SeqQ {
			at := (bh*p.SeqQ + i) * d
			seen := p.SeqKV
			if p.Causal {
				seen = min(seen, i+1+p.SeqKV-p.SeqQ)
			}
			top, sum := math.Inf(-1), 0.0
			for j := range seen {
				s := 0.0
				for c := range d {
					s += float64(in.q[at+c]) * float64(in.k[kv+j*d+c])
				}
				weights[j] = s * scale
				top = max(top, weights[j])
			}
			for j := range seen {
				weights[j] = math.Exp(weights[j] - top)
				sum += weights[j]
			}
			delta := 0.0
			for j := range seen {
				weights[j] /= sum
				for c := range d {
					r["o"][at+c] += weights[j] * float64(in.v[kv+j*d+c])
				}
			}
			for c := range d {
				delta += r["o"][at+c] * float64(in.do[at+c])
			}
			for j := range seen {
				dw := 0.0
				for c := range d {
					dw += float64(in.do[at+c]) * float64(in.v[kv+j*d+c])
					r["dv"][kv+j*d+c] += weights[j] * float64(in.do[at+c])
				}
				ds := weights[j] * (dw - delta) * scale
				for c := range d {
					r["dq"][at+c] += ds * float64(in.k[kv+j*d+c])
					r["dk"][kv+j*d+c] += ds * float64(in.q[at+c])
				}
			}
		}
	}
	return r
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
		for _, v := range data {
			r[name] = append(r[name], float64(v))
		}
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
