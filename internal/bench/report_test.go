package bench

import (
	"flag"
	"io"
	"math"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// subjectOf returns what forward results of a problem are of.
func subjectOf(p attention.Problem) *Subject {
	op, err := NewAttention(p)
	if err != nil {
		panic(err)
	}
	return NewSubject(op, Forward)
}

// written returns a report in a format.
func written(t *testing.T, r Report, f Format) string {
	t.Helper()
	var b strings.Builder
	require.NoError(t, r.Write(&b, f))
	return b.String()
}

// sampleReport has a result of every status.
func sampleReport() Report {
	of := subjectOf(attention.Problem{Batch: 2, NumHeads: 8, NumKVHeads: 4, SeqQ: 1024, SeqKV: 1024, HeadDim: 128, DType: dtype.BFloat16, Causal: true})
	check := Check{Rows: 500, OfRows: 16384, Counted: "rows", MaxAbs: 0.0039, MeanAbs: 2.5e-4, Limit: 0.0078, LSEMaxAbs: 1e-6, LSELimit: 1e-5}
	bad := check
	bad.MaxAbs, bad.MeanAbs = math.Inf(1), math.NaN()
	var device []float64
	for i := range 10 {
		device = append(device, 100e3+float64((i*7)%10)*1e3) // 100 to 109 µs, not in order
	}
	return Report{
		Env: Environment{Device: "Test  GPU", DeviceType: "discrete GPU", Driver: "TestDriver 1.2", Version: "v0.1.0", Commit: "abc"},
		Results: []Result{
			{Kernel: "attention_fwd", Impl: "coopmat2", Choice: "coopmat2 128x64", Subject: of, Status: StatusOK, Check: check,
				Timing: Timing{Iters: 20, Sets: 3, DeviceNS: device, ReplayNS: []float64{120e3, 121e3, 122e3}, FreshNS: []float64{150e3, 151e3, 149e3}}},
			{Kernel: "attention_fwd", Impl: "coopmat", Choice: "coopmat 64x64", Subject: of, Status: StatusFailed, Reason: "O[0,0,0,1] = NaN", Check: bad},
			{Kernel: "attention_fwd", Impl: "scalar", Subject: of, Status: StatusUnsupported, Reason: "no <such>\nthing"},
		},
	}
}

// TestSummarize: nothing is called a confidence interval that is none.
func TestSummarize(t *testing.T) {
	samples := []float64{5, 1, 9, 3, 7, 2, 8, 4, 6, 10}
	// The 2nd and the 9th of 10 samples enclose the median with probability
	// 1 - 2*(1+10)/2^10 = 0.979.
	require.Equal(t, Summary{N: 10, Median: 5.5, Min: 1, Max: 10, Lo: 2, Hi: 9}, Summarize(samples))
	require.Equal(t, 5.0, samples[0], "the samples were sorted in place")
	require.Equal(t, 3.5/5.5, Summarize(samples).Spread())
	require.Equal(t, Summary{N: 3, Median: 2, Min: 1, Max: 6, Lo: math.Inf(-1), Hi: math.Inf(1)}, Summarize([]float64{1, 2, 6}))
	for _, c := range []struct {
		samples []float64
		want    string
	}{
		{nil, "-"},
		{[]float64{7}, "∞"},
		{[]float64{90, 95, 100, 110, 120}, "90–120%"},
		{[]float64{90, 95, 99, 101, 110, 120}, "20%"}, // the range is the interval of six, at 97 %
		{[]float64{995, 1000, 1000, 1000, 1000, 1005}, "0.5%"},
	} {
		require.Equal(t, c.want, Summarize(c.samples).PlusMinus())
	}
}

var update = flag.Bool("update", false, "write testdata/reports.txt")

// TestReports compares reports with the file: tables of one problem, with a peer that is wrong, and of problems that
// differ, and a result of every status in each format for machines, where values that a result lacks are empty.
func TestReports(t *testing.T) {
	want, err := os.ReadFile("testdata/reports.txt")
	require.NoError(t, err)
	r := sampleReport()
	r.Wide = true
	r.Memory = vk.Memory{Peak: 7e6, Buffers: []vk.NamedMemory{{Name: "x", Peak: 3e6}, {Name: "y", Peak: 2e6}, {Name: "w", Peak: 1e6}, {Name: "loss", Peak: 4}}}
	slow := r.Results[0]
	slow.Impl, slow.Peer, slow.Check, slow.Reason = "torch:math", true, Check{}, "no output"
	slow.Timing.DeviceNS = []float64{313.5e3}
	r.Results = append(r.Results, slow)
	got := written(t, r, Table)

	s := Suite{Name: "throughput", About: "rates at FlashAttention's shapes"}
	square := func(batch, heads, seq, headDim int, causal bool) attention.Problem {
		return attention.Problem{Batch: batch, NumHeads: heads, NumKVHeads: heads, SeqQ: seq, SeqKV: seq, HeadDim: headDim, DType: dtype.Float16, Causal: causal}
	}
	r = Report{Env: r.Env, Suite: &s, Wide: true}
	for i, p := range []attention.Problem{square(32, 32, 512, 64, false), square(16, 32, 1024, 64, false), square(32, 16, 512, 128, true)} {
		for j, impl := range []string{"auto", "scalar"} {
			ns := p.FLOPs() / 100e12 * 1e9 * float64(1+j) // 100 TFLOP/s
			x := Result{Kernel: "attention_fwd", Impl: impl, Choice: impl + " 64x64", Subject: subjectOf(p), Status: StatusOK,
				Check: Check{Rows: 10, OfRows: 10, Counted: "rows", MaxAbs: 1e-3, MeanAbs: 1e-4, Limit: 2e-3}, Timing: Timing{DeviceNS: []float64{ns, ns * 1.1, ns * 0.9}}}
			if i > 0 && impl == "auto" {
				x.Status, x.Reason, x.Check, x.Timing, x.Choice = StatusUnsupported, "too large", Check{}, Timing{}, ""
			}
			r.Results = append(r.Results, x)
		}
	}
	_, table, _ := strings.Cut(written(t, r, Table), "\n\n")
	got += "====\n" + table
	r = sampleReport()
	r.Suite, r.Made = &Suite{Name: "decoder", Small: true}, time.Date(2026, 11, 23, 7, 0, 0, 0, time.FixedZone("", 3600))
	for _, f := range []Format{Benchfmt, CSV, JSON} {
		if f == JSON {
			r.Results[0].Timing.DeviceNS = r.Results[0].Timing.DeviceNS[:5] // have no confidence interval
		}
		got += "====\n" + written(t, r, f)
	}
	got = strings.NewReplacer(ReadBuildInfo().String(), "PROGRAM", "goos: "+runtime.GOOS, "goos: OS", "goarch: "+runtime.GOARCH, "goarch: ARCH").Replace(got)
	if *update {
		require.NoError(t, os.WriteFile("testdata/reports.txt", []byte(got), 0o644))
	}
	require.Equal(t, string(want), got)
}

func TestUnits(t *testing.T) {
	for want, got := range map[string]string{
		"0.5000 ns": FormatTime(0.5), "999.9 ns": FormatTime(999.9), "1.000 µs": FormatTime(999.96), "1.235 ms": FormatTime(1234567), "12.34 s": FormatTime(12.34e9), "12345 s": FormatTime(12345e9),
		"0 FLOP/s": FormatSI(0, "FLOP/s"), "440.1 TFLOP/s": FormatSI(440.1e12, "FLOP/s"), "1.000 TB/s": FormatSI(999.96e9, "B/s"), "10.00 B": FormatSI(9.9996, "B"), "5000.0 TB": FormatSI(5e15, "B"),
		"48 KiB": FormatBytes(49152), "4 GiB": FormatBytes(4292870144), "1.5 KiB": FormatBytes(1536), "0 B": FormatBytes(0),
	} {
		require.Equal(t, want, got)
	}
}

// FuzzRecords says that no CSV file makes plot panic or hang, and that what is drawn is a
// drawing.
func FuzzRecords(f *testing.F) {
	var b strings.Builder
	require.NoError(f, sampleReport().Write(&b, CSV))
	f.Add(b.String())
	f.Add(strings.ReplaceAll(b.String(), "104500", "5e-324"))
	f.Add(strings.ReplaceAll(b.String(), ",ok,", ",failed,"))
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
