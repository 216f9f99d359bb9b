package kernels

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
)

func TestAttentionWork(t *testing.T) {
	p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 10, SeqKV: 20, HeadDim: 32, ValueDim: 16, DType: dtype.Float16}
	const q, k, lse, scores = 2 * 4 * 10 * 32, 2 * 2 * 20 * 32, 4 * 2 * 4 * 10, 4 * 2 * 4 * 10 * 20
	const o, v = q / 2, k / 2
	for _, c := range []struct {
		kernel string
		config attention.Config
		want   [2]float64
	}{
		{"attention_fwd_coopmat2.f16", attention.Config{}, [2]float64{p.FLOPs(), p.Bytes()}},
		{"attention_fwd_scalar.f16", attention.Config{Splits: 3}, [2]float64{p.FLOPs(), 2*(q+k+v) + 3*(4*o+2*lse)}},
		{"attention_combine.f16", attention.Config{Splits: 3}, [2]float64{0, 3*(4*o+2*lse) + 2*o + lse}},
		{"attention_unfused_scores.f16", attention.Config{}, [2]float64{p.FLOPs() * 2 / 3, 2*(q+k) + scores}},
		{"attention_unfused_softmax_features", attention.Config{}, [2]float64{0, 2*scores + lse}},
		{"attention_unfused_values.f16", attention.Config{}, [2]float64{p.FLOPs() / 3, 2*(v+o) + scores}},
		{"something_else", attention.Config{}, [2]float64{}},
	} {
		a := attending{}
		a.Problem = p
		flops, bytes := a.work(c.kernel, c.config)
		require.InDelta(t, c.want[0], flops, 1e-6, c.kernel)
		require.Equal(t, c.want[1], bytes, c.kernel)
	}
}

// TestAttentionCalls has the limit of calls of the unfused path, 64 MiB each, and the lengths of packed
// sequences.
func TestAttentionCalls(t *testing.T) {
	a := attending{}
	a.Problem = attention.Problem{Batch: 2, NumHeads: 8, NumKVHeads: 8, SeqQ: 1024, SeqKV: 1024, HeadDim: 64}
	require.Equal(t, []int{32, 10, 0}, []int{a.MaxCalls("unfused", bench.Forward), a.MaxCalls("unfused", bench.Both), a.MaxCalls("scalar", bench.Forward)})
	op, err := Attention(attention.Problem{Batch: 5, NumHeads: 2, NumKVHeads: 2, SeqQ: 8, SeqKV: 10, HeadDim: 8, Varlen: attention.Varlen{On: true}})
	require.NoError(t, err)
	require.Contains(t, op.Keys(), bench.Key{Name: "varlen", Value: "28x36"})
	flops, _ := op.Cost(bench.Forward)
	require.Equal(t, 4.0*2*8*(80+48+20+6+80), flops)
}
