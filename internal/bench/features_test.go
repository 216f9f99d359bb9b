package bench

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk/kit"
)

// everything is a small problem with all features, packed. Some rows see nothing
// but their sink.
func everything() attention.Problem {
	return attention.Problem{
		Batch: 5, NumHeads: 4, NumKVHeads: 2, SeqQ: 41, SeqKV: 30, HeadDim: 16, ValueDim: 24, DType: dtype.Float16, Causal: true,
		Window: attention.Window{On: true, Left: 20}, Softcap: 5, ALiBi: attention.ALiBiPerBatchHead,
		Bias: attention.Bias{On: true, DType: dtype.Float16, Heads: true, Rows: true}, KeyMask: true, Sinks: true,
		Varlen: Varlen(5, 41, 30), Dropout: attention.Dropout{P: 0.1, Seeded: true},
	}
}

// TestVarlen: the lengths are what the flag says, and their operations count.
func TestVarlen(t *testing.T) {
	p := attention.Problem{Batch: 5, NumHeads: 2, NumKVHeads: 2, SeqQ: 8, SeqKV: 10, HeadDim: 8, Varlen: Varlen(5, 8, 10)}
	require.NoError(t, p.Validate())
	q, kv := cuSeqlens(p)
	require.Equal(t, []int32{0, 8, 14, 18, 20, 28}, q)
	require.Equal(t, []int32{0, 10, 18, 23, 26, 36}, kv)
	require.NoError(t, p.CheckCuSeqlens(q, kv))
	require.Equal(t, attention.Varlen{On: true, TotalQ: 28, TotalKV: 36}, p.Varlen)
	require.Equal(t, 4.0*2*8*(80+48+20+6+80), flops(p))
	p.Varlen = attention.Varlen{}
	require.Equal(t, p.FLOPs(), flops(p))
}

// drawnInputs returns what a problem is measured with.
func drawnInputs(t *testing.T, p attention.Problem) ref.Inputs[float32] {
	op := opOf(t, p)
	x := map[string][]float32{}
	for i, t := range op.Tensors() {
		if t.Role == call.Input && t.Ints == nil {
			x[t.Name] = t.Drawn(uint64(i + 1))
		}
	}
	in := ref.Inputs[float32]{Q: x["q"], K: x["k"], V: x["v"], Bias: x["bias"], ALiBiSlopes: x["alibi_slopes"], Sinks: x["sinks"], CuSeqlensQ: op.cuQ, CuSeqlensKV: op.cuKV}
	for _, v := range x["key_mask"] {
		in.KeyMask = append(in.KeyMask, v == 1)
	}
	return in
}

// TestFeatureOracle says that right outputs of a problem with all features pass,
// and that wrong ones are found where they are.
func TestFeatureOracle(t *testing.T) {
	p := everything()
	require.NoError(t, p.Validate())
	in := drawnInputs(t, p)
	oracle, err := newOracle(in, p)
	require.NoError(t, err)
	o64, lse64 := make([]float64, elements(p.OShape())), make([]float64, elements(p.LSEShape()))
	require.NoError(t, ref.Plain(o64, lse64, in, p))
	o, lse := make([]float32, len(o64)), make([]float32, len(lse64))
	for i, x := range o64 {
		o[i] = float32(x)
	}
	for i, x := range lse64 {
		lse[i] = float32(x)
	}
	check, err := oracle.Check(map[string][]float32{"o": o, "lse": lse})
	require.NoError(t, err)
	require.Equal(t, 4*(41+31+21+11+41), check.Rows)
	require.Equal(t, check.Rows, check.OfRows)

	at, atLSE := in.At(p, ref.Row{Batch: 2, Head: 3, Row: 14})
	o[at*24+7]++
	_, err = oracle.Check(map[string][]float32{"o": o, "lse": lse})
	require.ErrorContains(t, err, "O[2,3,14,7] is ")
	o[at*24+7]--
	lse[atLSE]++
	_, err = oracle.Check(map[string][]float32{"o": o, "lse": lse})
	require.ErrorContains(t, err, "LSE[2,3,14] is ")
}

// TestFeatureKeyMask: one key in eight is hidden.
func TestFeatureKeyMask(t *testing.T) {
	hidden := 0
	in := drawnInputs(t, attention.Problem{Batch: 4, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 1000, HeadDim: 8, KeyMask: true})
	require.Len(t, in.KeyMask, 4000)
	for _, visible := range in.KeyMask {
		if !visible {
			hidden++
		}
	}
	require.InDelta(t, 500, hidden, 5*21)
}

// TestUploadFeatures says that the tensors fit the problem, and that measuring
// it either works or says which feature has no kernel.
func TestUploadFeatures(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	ctx := context.Background()
	p := everything()
	r := newOpRun(d, Case{Op: opOf(t, p)})
	defer r.close()
	require.NoError(t, r.prepare(ctx))
	in, out := drawnInputs(t, p), r.sets[0]
	bias := make([]float32, len(in.Bias))
	require.NoError(t, out["bias"].Download(ctx, bias))
	require.Equal(t, in.Bias, bias)
	raw := make([]byte, 4*6)
	require.NoError(t, out["cu_seqlens_kv"].DownloadRaw(ctx, raw))
	require.Equal(t, []byte{0, 0, 0, 0, 30, 0, 0, 0, 53, 0, 0, 0}, raw[:12])
	mask := make([]byte, 5*30)
	require.NoError(t, out["key_mask"].DownloadRaw(ctx, mask))
	for i, visible := range in.KeyMask {
		require.Equal(t, visible, mask[i] == 1)
	}
	require.Equal(t, []int{5, 4}, out["alibi_slopes"].Shape)

	wrong := p
	wrong.Varlen.TotalQ++
	_, err := NewAttention(wrong)
	require.EqualError(t, err, "bench: varlen=146x106 is not what is measured, 145x106")

	supported := attention.Supports(d.Caps(), p, kit.Forward, attention.Options{Impl: attention.Scalar})
	results, err := Run(ctx, d, Case{Op: opOf(t, p), Impls: []string{"scalar"}, Protocol: Protocol{Samples: 1, Iters: 1}}, nil)
	require.NoError(t, err)
	if supported == nil {
		require.Equal(t, StatusOK, results[0].Status, results[0].Reason)
		return
	}
	require.Equal(t, StatusUnsupported, results[0].Status)
	require.Equal(t, Reason("attention", "scalar", supported), results[0].Reason)
	require.True(t, strings.HasPrefix(results[0].Reason, "no kernel has "), results[0].Reason)
}
