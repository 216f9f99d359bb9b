package bench

import (
	"bytes"
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/ref"
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
			rows := map[Pass]int{Backward: 132, Both: 2 * 132}[pass]
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

// TestCheckGradients says that right gradients pass and that each kind of wrong ones
// is found and named, also where only some rows and keys are compared.
func TestCheckGradients(t *testing.T) {
	p := attention.Problem{Batch: 2, NumHeads: 2, NumKVHeads: 1, SeqQ: 40, SeqKV: 30, HeadDim: 16, DType: dtype.Float16, Causal: true}
	in, o, lse := right(t, p)
	up := ref.Upstream[float32]{DO: Normal(p.DType, elements(p.OShape()), 7)}
	g := ref.NewGradients(p)
	require.NoError(t, ref.Backward(g, up, in, p))
	good := [3][]float32{rounded(g.DQ), rounded(g.DK), rounded(g.DV)}
	nan := float32(math.NaN())
	for _, c := range []struct {
		change     func(g [3][]float32)
		rows, keys int
		want       string // "" passes
	}{
		{func([3][]float32) {}, 160, 60, ""},
		{func(g [3][]float32) { g[0][((1*2+1)*40+39)*16+3] += 0.1 }, 160, 60, "dq[1,1,39,3] is "},
		{func(g [3][]float32) { g[0][((1*2+1)*40+39)*16+3] = nan }, 160, 60, "dq[1,1,39,3] is NaN"},
		{func(g [3][]float32) { g[1][(1*30+5)*16] += 0.2 }, 160, 60, "dk[1,0,5,0] is "},
		{func(g [3][]float32) { g[2][29*16+15] -= 0.2 }, 160, 60, "dv[0,0,29,15] is "},
		{func([3][]float32) {}, 2, 2, ""},
		{func(g [3][]float32) { g[0][20*16] += 0.1 }, 2, 2, ""}, // not among them
		{func(g [3][]float32) { g[2][5*16] = nan }, 2, 2, "element 80 of dv was not written or is not finite"},
	} {
		r := gradientOracle{p: p, in: in}
		var err error
		r.sample, err = ref.SampleBackward(o, lse, up, in, p, ref.SampleRows(in, p, c.rows), ref.SampleKeys(in, p, c.keys))
		require.NoError(t, err)
		var got [3][]float32
		for i, x := range good {
			got[i] = append([]float32(nil), x...)
		}
		c.change(got)
		check, wrong := r.Check(map[string][]float32{"dq": got[0], "dk": got[1], "dv": got[2]})
		require.Equal(t, c.rows, check.Rows)
		require.Equal(t, 160, check.OfRows)
		if c.want == "" {
			require.NoError(t, wrong)
			require.LessOrEqual(t, check.MaxAbs, check.Limit)
			continue
		}
		require.ErrorContains(t, wrong, c.want)
	}
}

// rounded returns x as float16 stores it.
func rounded(x []float64) []float32 {
	y := make([]float32, len(x))
	for i := range x {
		y[i] = dtype.Float16.Round(float32(x[i]))
	}
	return y
}

// TestSampleSizes: all of a small problem, few of a large one.
func TestSampleSizes(t *testing.T) {
	rows, keys := sampleSizes(attention.Problem{Batch: 1, NumHeads: 4, NumKVHeads: 2, SeqQ: 256, SeqKV: 256, HeadDim: 64})
	require.GreaterOrEqual(t, rows, 4*256)
	require.GreaterOrEqual(t, keys, 2*256)
	rows, keys = sampleSizes(attention.Problem{Batch: 1, NumHeads: 8, NumKVHeads: 8, SeqQ: 205000, SeqKV: 200000, HeadDim: 64})
	require.Equal(t, []int{16, 16}, []int{rows, keys})
}
