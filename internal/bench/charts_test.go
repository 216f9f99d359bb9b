package bench

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// subjectOf returns what forward results of a problem are of.
func subjectOf(p attention.Problem) *Subject {
	op, err := NewAttention(p)
	if err != nil {
		panic(err)
	}
	return NewSubject(op, Forward)
}

// subjectsOf returns what results are of.
func subjectsOf(r Report) (list []*Subject) {
	for _, x := range r.Results {
		list = append(list, x.Subject)
	}
	return list
}

// sweepProblem is the problem of a length.
func sweepProblem(seq int) attention.Problem {
	return attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 2, SeqQ: seq, SeqKV: seq, HeadDim: 64, DType: dtype.Float16, Causal: true}
}

// changed returns what results of a problem that is changed are of.
func changed(p attention.Problem, change func(p *attention.Problem)) *Subject {
	change(&p)
	return subjectOf(p)
}

// sweepReport has two paths at three lengths, in no order: coopmat takes
// seq µs, unfused four times that, and nothing at the longest.
func sweepReport() Report {
	r := Report{Env: Environment{Device: "Test GPU", DeviceType: "discrete GPU", Driver: "TestDriver 1.2", Commit: "abc"}}
	for _, seq := range []int{512, 128, 2048} {
		of := subjectOf(sweepProblem(seq))
		x := Result{Kernel: "attention_fwd", Impl: "coopmat", Subject: of, Status: StatusOK, Timing: Timing{DeviceNS: []float64{float64(seq) * 1e3}}}
		y := Result{Kernel: "attention_fwd", Impl: "unfused", Subject: of, Status: StatusOK, Timing: Timing{DeviceNS: []float64{float64(seq) * 4e3}}}
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
	require.Equal(t, "Test GPU (discrete GPU), driver TestDriver 1.2\ndtype float16, batch 1, heads 2, kv-heads 2, head-dim 64, causal, causal-align bottom-right, scale 0.125, value-dim 64", latency.Subtitle)

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

// TestDoubling: lengths that double have ticks of their own, however few they are, and a peer's
// line is known as such.
func TestDoubling(t *testing.T) {
	r := sweepReport()
	for i := range r.Results {
		r.Results[i].Subject = subjectOf(sweepProblem([]int{32, 64, 128}[i/2]))
	}
	r.Results[1].Peer, r.Results[3].Peer = true, true
	list, err := Charts(records(t, r), "")
	require.NoError(t, err)
	var b strings.Builder
	require.NoError(t, list[2].SVG(&b))
	for _, want := range []string{">32<", ">64<", ">128<", `"peer c1"`} {
		require.Contains(t, b.String(), want)
	}
	for _, tick := range []string{">40<", ">60<", ">80<", `"peer c0"`} {
		require.NotContains(t, b.String(), tick)
	}
}

func TestChartsErrors(t *testing.T) {
	for _, c := range []struct {
		change   func(r *Report)
		baseline string
		want     string
	}{
		{func(*Report) {}, "scalar", "the baseline scalar is not one of coopmat, unfused"},
		{func(r *Report) {
			r.Results[2].Subject = changed(sweepProblem(128), func(p *attention.Problem) { p.HeadDim = 128 })
		}, "", `head_dim is "128" in line 4 and "64" in line 5, where seq_q is 128`},
		{func(r *Report) { r.Results[2].Subject = r.Results[0].Subject }, "", "line 4 is a second result of coopmat at seq_q=512"},
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
