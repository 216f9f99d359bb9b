package bench

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestBackward measures the backward pass, alone and after the forward pass, on
// every path that has it.
func TestBackward(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	p := smallProblem()
	impls := append([]attention.Impl{attention.Auto}, attention.Impls()...)
	for _, pass := range []Pass{Backward, Both} {
		results, err := Run(context.Background(), d, Case{Op: opOf(t, p), Pass: pass, Impls: namesOf(impls...), Protocol: quick()}, nil)
		require.NoError(t, err)
		ok := 0
		for i, impl := range impls {
			x := results[i]
			require.Equal(t, "attention"+pass.suffix(), x.Kernel)
			if err := attention.Supports(d.Caps(), p, kit.Backward, attention.Options{Impl: impl}); err != nil {
				require.Equal(t, StatusUnsupported, x.Status, "%v", impl)
				require.Equal(t, Reason("attention", impl.String(), err), x.Reason)
				continue
			}
			ok++
			require.Equal(t, StatusOK, x.Status, "%v: %s", impl, x.Reason)
			require.Len(t, x.Timing.DeviceNS, 3)
			const forward, backward = 132*16 + 132, (132 + 2*100) * 16
			rows := map[Pass]int{Backward: backward, Both: forward + backward}[pass]
			require.Equal(t, rows, x.Check.OfRows)
			require.Equal(t, rows, x.Check.Rows)
			require.Positive(t, x.Check.MaxAbs)
			require.LessOrEqual(t, x.Check.MaxAbs, x.Check.Limit)
			require.Equal(t, pass == Both, x.Check.LSELimit > 0)
		}
		require.Positive(t, ok)
		var lines bytes.Buffer
		require.NoError(t, Report{Results: results}.Write(&lines, Benchfmt))
		require.Contains(t, lines.String(), map[Pass]string{Backward: "BenchmarkAttentionBwd/impl=auto", Both: "BenchmarkAttentionFwdBwd/impl=auto"}[pass])
	}
}

// TestBackwardFeatures measures the backward pass with all features on every path.
func TestBackwardFeatures(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	results, err := Run(context.Background(), d, Case{Op: opOf(t, everything()), Pass: Backward, Impls: namesOf(attention.Impls()...), Protocol: quick()}, nil)
	require.NoError(t, err)
	for i, impl := range attention.Impls() {
		x := results[i]
		if err := attention.Supports(d.Caps(), everything(), kit.Backward, attention.Options{Impl: impl}); err != nil {
			require.Equal(t, Reason("attention", impl.String(), err), x.Reason)
			continue
		}
		require.Equal(t, StatusOK, x.Status, "%v: %s", impl, x.Reason)
		require.Positive(t, x.Check.MaxAbs)
	}
}

// TestPassCounts: the operations and bytes that rates are of.
func TestPassCounts(t *testing.T) {
	p := attention.Problem{Batch: 2, NumHeads: 8, NumKVHeads: 4, SeqQ: 64, SeqKV: 32, HeadDim: 16, DType: dtype.Float16}
	flops := func(pass Pass) float64 { return NewSubject(opOf(t, p), pass).flops }
	require.Equal(t, p.FLOPs(), flops(Forward))
	require.Equal(t, 2.5*p.FLOPs(), flops(Backward))
	require.Equal(t, 3.5*p.FLOPs(), flops(Both))
	p.ValueDim = 32
	require.Equal(t, p.BackwardFLOPs(), flops(Backward))
	require.Equal(t, p.Bytes()+p.BackwardBytes(), NewSubject(opOf(t, p), Both).bytes)
	for _, pass := range []Pass{Forward, Backward, Both} {
		of := NewSubject(opOf(t, p), pass)
		require.Equal(t, "attention "+pass.String(), kernelWords(of.kernel))
		x := Result{Kernel: of.kernel, Subject: of, Status: StatusOK, Timing: Timing{DeviceNS: []float64{1e9}}}
		require.InEpsilon(t, of.flops, x.FLOPRate(), 1e-12)
		require.InEpsilon(t, of.bytes, x.ByteRate(), 1e-12)
	}
}

// everything is a small problem with all features, packed. Some rows see nothing but their sink.
func everything() attention.Problem {
	return attention.Problem{
		Batch: 5, NumHeads: 4, NumKVHeads: 2, SeqQ: 41, SeqKV: 30, HeadDim: 16, ValueDim: 24, DType: dtype.Float16, Causal: true,
		Window: attention.Window{On: true, Left: 20}, Softcap: 5, ALiBi: attention.ALiBiPerBatchHead,
		Bias: attention.Bias{On: true, DType: dtype.Float16, Heads: true, Rows: true}, KeyMask: true, Sinks: true,
		Varlen: attention.Varlen{On: true, TotalQ: 145, TotalKV: 106}, Dropout: attention.Dropout{P: 0.1, Seeded: true},
	}
}
