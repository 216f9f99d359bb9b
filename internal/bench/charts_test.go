package bench

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// sweepProblem is the problem of a length.
func sweepProblem(seq int) attention.Problem {
	return attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: seq, SeqKV: seq, HeadDim: 64, DType: dtype.Float16, Causal: true}
}

// sweepReport has two paths at three lengths, in no order: coopmat takes
// seq µs, unfused four times that, and nothing at the longest.
func sweepReport(change ...func(p *attention.Problem)) Report {
	r := Report{Env: Environment{Device: "Test GPU", DeviceType: "discrete GPU", Driver: "TestDriver 1.2", Commit: "abc"}}
	for _, seq := range []int{512, 128, 2048} {
		of := subjectOf(sweepProblem(seq), change...)
		x := Result{Kernel: "attention_fwd", Impl: "coopmat", Subject: of, Status: StatusOK, Timing: Timing{DeviceNS: []float64{float64(seq) * 1e3}}}
		y := Result{Kernel: "attention_fwd", Impl: "unfused", Peer: true, Subject: of, Status: StatusOK, Timing: Timing{DeviceNS: []float64{float64(seq) * 4e3}}}
		if seq == 2048 {
			y.Status, y.Timing, y.Reason = StatusUnsupported, Timing{}, "too large"
		}
		r.Results = append(r.Results, x, y)
	}
	return r
}

// plots draws the CSV of a report, with some texts replaced.
func plots(t *testing.T, r Report, baseline string, replace ...string) map[string]Drawing {
	x, err := ReadRecords(strings.NewReader(strings.NewReplacer(replace...).Replace(written(t, r, CSV))))
	require.NoError(t, err)
	list, err := Plots(x, baseline)
	require.NoError(t, err)
	named := map[string]Drawing{}
	for _, d := range list {
		named[d.Name] = d
		require.NoError(t, d.SVG(io.Discard))
	}
	return named
}

func TestPlots(t *testing.T) {
	of := plots(t, sweepReport(), "")
	require.Len(t, of, 3)
	latency, speedup, rate := of["latency"], of["speedup"], of["rate"]
	require.True(t, latency.LogX && latency.LogY)
	require.Equal(t, "ms per call", latency.Y)
	require.Equal(t, "sequence length", latency.X)
	require.Equal(t, "coopmat", latency.Series[0].Name)
	require.Equal(t, []float64{128, 512, 2048}, latency.Series[0].X)
	require.InDeltaSlice(t, []float64{0.128, 0.512, 2.048}, latency.Series[0].Y, 1e-12)
	require.Equal(t, []float64{128, 512}, latency.Series[1].X)
	require.True(t, latency.Series[1].Peer)
	require.Equal(t, "Test GPU (discrete GPU), driver TestDriver 1.2\ndtype float16, batch 1, heads 2, kv-heads 2, head-dim 64, causal, causal-align bottom-right, scale 0.125, value-dim 64", latency.Subtitle)
	require.Equal(t, "times as fast as unfused", speedup.Y)
	require.InDeltaSlice(t, []float64{4, 4}, speedup.Series[0].Y, 1e-12)
	require.InDeltaSlice(t, []float64{1, 1}, speedup.Series[1].Y, 1e-12)
	// 4*2*64*(2048*2049/2) operations in 2.048 ms are 524.5 GFLOP/s.
	require.Equal(t, "GFLOP/s", rate.Y)
	require.InDelta(t, 524.544, rate.Series[0].Y[2], 1e-3)
	of = plots(t, sweepReport(), "coopmat", ",128000,,,", ",128000,64000,,")
	require.InDeltaSlice(t, []float64{0.25, 0.25}, of["speedup"].Series[1].Y, 1e-12)
	require.InDeltaSlice(t, []float64{0.064, 0.128}, []float64{of["latency"].Series[0].Low[0], of["latency"].Series[0].High[0]}, 1e-9)

	// Another family, a rectangle, and a problem whose paths all failed. The report draws the same.
	r, other := sweepReport(), sweepReport(func(p *attention.Problem) { p.Batch = 2 })
	single := other.Results[0]
	single.Subject = subjectOf(sweepProblem(512), func(p *attention.Problem) { p.Batch, p.SeqKV, p.Causal = 3, 64, false })
	failed := single
	failed.Subject = subjectOf(sweepProblem(512), func(p *attention.Problem) { p.Batch, p.SeqKV, p.Causal, p.NumHeads = 3, 64, false, 4 })
	failed.Status = StatusFailed
	r.Results = append(append(r.Results, single, failed), other.Results...)
	of = plots(t, r, "")
	var names []string
	for _, d := range r.Charts() {
		names = append(names, d.Name)
		require.Equal(t, of[d.Name], d)
	}
	require.Equal(t, []string{"latency-1", "speedup-1", "rate-1", "latency-2", "speedup-2", "rate-2", "rates"}, names)
	bars := of["rates"]
	require.Equal(t, []string{"2", "4"}, bars.Categories)
	require.Equal(t, "heads", bars.X)
	require.Len(t, bars.Series, 1)
	require.Equal(t, []float64{0}, bars.Series[0].X)
	require.InDelta(t, 98.304, bars.Series[0].Y[0], 1e-9) // 4*3*2*512*64*64 operations in 512 µs
	require.Equal(t, "GFLOP/s", bars.Y)
	r.Results = []Result{failed}
	require.Empty(t, r.Charts())
}

// FuzzRecords says that no CSV file makes plot panic or hang, and that what is drawn is a
// drawing.
func FuzzRecords(f *testing.F) {
	for _, r := range []Report{sampleReport(), sweepReport()} {
		var b strings.Builder
		require.NoError(f, r.Write(&b, CSV))
		f.Add(b.String())
		f.Add(strings.ReplaceAll(b.String(), "104500", "5e-324"))
		f.Add(strings.ReplaceAll(b.String(), ",ok,", ",failed,"))
	}
	f.Add("gpu,driver,kernel,impl,status,reason,seq_q,flops,device_ns\ng,d,k,i,ok,,1,1,1e6\ng,d,k,i,ok,,2,1,1e6\ng,d,k,i,ok,,3,1e308,1e-308\n")
	f.Fuzz(func(t *testing.T, text string) {
		x, err := ReadRecords(strings.NewReader(text))
		if err != nil {
			return
		}
		drawings, err := Plots(x, "")
		if err != nil && strings.ContainsAny(err.Error(), "\n\r\x1b") {
			t.Errorf("%q is no line", err)
		}
		for i, d := range drawings {
			if err := d.SVG(io.Discard); err == nil && i == 3 {
				break // the others are of the same kinds
			}
		}
	})
}
