package bench

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// sweepReport has two paths at three lengths, in no order: coopmat takes
// seq µs, unfused four times that, and nothing at the longest.
func sweepReport() Report {
	r := Report{Env: Environment{Device: "Test GPU", DeviceType: "discrete GPU", Driver: "TestDriver 1.2", Commit: "abc"}}
	for _, seq := range []int{512, 128, 2048} {
		p := attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: seq, SeqKV: seq, HeadDim: 64, DType: dtype.Float16, Causal: true}
		x := Result{Kernel: "attention_fwd", Impl: "coopmat", Problem: p, Status: StatusOK, Timing: Timing{DeviceNS: []float64{float64(seq) * 1e3}}}
		y := Result{Kernel: "attention_fwd", Impl: "unfused", Problem: p, Status: StatusOK, Timing: Timing{DeviceNS: []float64{float64(seq) * 4e3}}}
		if seq == 2048 {
			y.Status, y.Timing, y.Reason = StatusUnsupported, Timing{}, "too large"
		}
		r.Results = append(r.Results, x, y)
	}
	return r
}

func records(t *testing.T, r Report) *Records {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, r.Write(&b, CSV))
	x, err := ReadRecords(&b)
	require.NoError(t, err)
	return x
}

func TestCharts(t *testing.T) {
	x := records(t, sweepReport())
	list, err := Charts(x, "")
	require.NoError(t, err)
	require.Len(t, list, 3)
	latency, speedup, rate := list[0], list[1], list[2]
	require.Equal(t, "latency", latency.Name)
	require.True(t, latency.LogX && latency.LogY)
	require.Equal(t, "ms per call", latency.Y)
	require.Equal(t, "coopmat", latency.Series[0].Name)
	require.Equal(t, []float64{128, 512, 2048}, latency.Series[0].X)
	require.InDeltaSlice(t, []float64{0.128, 0.512, 2.048}, latency.Series[0].Y, 1e-12)
	require.Equal(t, []float64{128, 512}, latency.Series[1].X)
	require.Equal(t, "Test GPU (discrete GPU), driver TestDriver 1.2\nfloat16: batch 1, heads 2, kv-heads 2, headdim 64, causal (bottom-right)", latency.Subtitle)

	require.Equal(t, "times as fast as unfused", speedup.Y)
	require.Equal(t, []float64{128, 512}, speedup.Series[0].X)
	require.InDeltaSlice(t, []float64{4, 4}, speedup.Series[0].Y, 1e-12)
	require.InDeltaSlice(t, []float64{1, 1}, speedup.Series[1].Y, 1e-12)

	// 4*2*64*(2048*2049/2) operations in 2.048 ms are 524.5 GFLOP/s.
	require.Equal(t, "GFLOP/s", rate.Y)
	require.InDelta(t, 524.544, rate.Series[0].Y[2], 1e-3)

	list, err = Charts(x, "coopmat")
	require.NoError(t, err)
	require.InDeltaSlice(t, []float64{1, 1, 1}, list[1].Series[0].Y, 1e-12)
	require.InDeltaSlice(t, []float64{0.25, 0.25}, list[1].Series[1].Y, 1e-12)
}

func TestChartsErrors(t *testing.T) {
	for _, c := range []struct {
		change   func(r *Report)
		baseline string
		want     string
	}{
		{func(*Report) {}, "scalar", "the baseline scalar is not one of coopmat, unfused"},
		{func(r *Report) { r.Results[2].Problem.HeadDim = 128 }, "", `head_dim is "64" in line 2 and "128" in line 4`},
		{func(r *Report) { r.Results[2].Problem.SeqQ = 512 }, "", "line 4 is a second result of coopmat at seq_q=512"},
		{func(r *Report) {
			for i := range r.Results {
				r.Results[i].Status = StatusFailed
			}
		}, "", "no result of it has a time"},
	} {
		r := sweepReport()
		c.change(&r)
		_, err := Charts(records(t, r), c.baseline)
		require.ErrorContains(t, err, c.want)
	}
	var b bytes.Buffer
	require.NoError(t, sweepReport().Write(&b, CSV))
	text := b.String()
	for _, c := range []struct{ text, want string }{
		{"", "it is empty"},
		{"a,b\n1,2\n", "it has no column gpu"},
		{text + "1,2\n", "wrong number of fields"},
	} {
		_, err := ReadRecords(strings.NewReader(c.text))
		require.ErrorContains(t, err, c.want)
	}
	for _, c := range []struct{ from, to, want string }{
		{",512000,", ",x,", `device_ns="x" is not a number`},
		{",512000,", ",-3,", "device_ns=-3 is not positive"},
	} {
		x, err := ReadRecords(strings.NewReader(strings.Replace(text, c.from, c.to, 1)))
		require.NoError(t, err)
		_, err = Charts(x, "")
		require.ErrorContains(t, err, c.want)
	}
	head, _, _ := strings.Cut(text, "\n")
	x, err := ReadRecords(strings.NewReader(head + "\n"))
	require.NoError(t, err)
	_, err = Charts(x, "")
	require.EqualError(t, err, "it has no results")
}
