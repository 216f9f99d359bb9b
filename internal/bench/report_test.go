package bench

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/perf/benchfmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

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

func TestSummarize(t *testing.T) {
	if s := Summarize(nil); s != (Summary{}) {
		t.Errorf("no samples: %+v", s)
	}
	samples := []float64{5, 1, 9, 3, 7, 2, 8, 4, 6, 10}
	s := Summarize(samples)
	if s.N != 10 || s.Median != 5.5 || s.Min != 1 || s.Max != 10 {
		t.Errorf("%+v", s)
	}
	if samples[0] != 5 {
		t.Error("the samples were sorted in place")
	}
	// The 2nd and the 9th of 10 samples enclose the median with probability
	// 1 - 2*(1+10)/2^10 = 0.979.
	if s.Lo != 2 || s.Hi != 9 {
		t.Errorf("interval %v to %v, want 2 to 9", s.Lo, s.Hi)
	}
	if got, want := s.Spread(), 3.5/5.5; got != want {
		t.Errorf("spread %v, want %v", got, want)
	}
	if s := Summarize([]float64{1, 2, 6}); !math.IsInf(s.Lo, -1) || !math.IsInf(s.Hi, 1) || s.Min != 1 || s.Max != 6 || s.Median != 2 {
		t.Errorf("three samples: %+v, want no interval", s)
	}
}

func TestBenchfmt(t *testing.T) {
	r := sampleReport()
	var b bytes.Buffer
	if err := r.Write(&b, Benchfmt); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	of := r.Results[0].Subject
	in := benchfmt.NewReader(&b, "out")
	n := 0
	for in.Scan() {
		switch rec := in.Result().(type) {
		case *benchfmt.SyntaxError:
			t.Fatal(rec)
		case *benchfmt.Result:
			n++
			if want := "AttentionFwd/impl=coopmat2/dtype=bfloat16/batch=2/heads=8/kv_heads=4/seq_q=1024/seq_kv=1024/head_dim=128/causal=true"; string(rec.Name) != want {
				t.Errorf("name %s, want %s", rec.Name, want)
			}
			for key, want := range map[string]string{"gpu": "Test GPU", "driver": "TestDriver 1.2", "commit": "abc", "version": "v0.1.0", "pkg": "github.com/flashvk/flashvk/internal/bench"} {
				if got := rec.GetConfig(key); got != want {
					t.Errorf("%s: %q, want %q", key, got, want)
				}
			}
			sec, _ := rec.Value("sec/op")
			flops, _ := rec.Value("FLOP/s")
			if sec < 100e-6 || sec > 109e-6 || math.Abs(flops*sec/of.flops-1) > 1e-9 {
				t.Errorf("%v s at %v FLOP/s is not %v FLOP", sec, flops, of.flops)
			}
			_, wall := rec.Value("fresh-wall-sec/op")
			if wall != (n <= 3) {
				t.Errorf("line %d: wall-clock sample: %v", n, wall)
			}
			if rec.Iters != 20 {
				t.Errorf("%d iterations, want 20", rec.Iters)
			}
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
	if n != 10 {
		t.Errorf("%d lines, want one for each of 10 samples\n%s", n, text)
	}
	if better := in.Units().GetBetter("FLOP/s"); better != 1 {
		t.Errorf("FLOP/s: better = %d, want higher", better)
	}
}

func TestJSON(t *testing.T) {
	r := sampleReport()
	var b bytes.Buffer
	if err := r.Write(&b, JSON); err != nil {
		t.Fatal(err)
	}
	var got struct {
		GPU     string `json:"gpu"`
		Results []struct {
			Impl, Status, Reason, DType string
			SeqQ                        int       `json:"seq_q"`
			MaxAbs                      *float64  `json:"max_abs_error"`
			Rate                        *float64  `json:"flop_per_s"`
			Samples                     []float64 `json:"device_ns_samples"`
			Causal                      bool
		}
	}
	dec := json.NewDecoder(&b)
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	if got.GPU != "Test  GPU" || len(got.Results) != 3 {
		t.Fatalf("%+v", got)
	}
	ok, bad, no := got.Results[0], got.Results[1], got.Results[2]
	if ok.Status != "ok" || ok.SeqQ != 1024 || len(ok.Samples) != 10 || ok.MaxAbs == nil || *ok.MaxAbs != 0.0039 || !ok.Causal || ok.DType != "bfloat16" {
		t.Errorf("%+v", ok)
	}
	if want := r.Results[0].Subject.flops / 104500e-9; ok.Rate == nil || math.Abs(*ok.Rate/want-1) > 1e-9 {
		t.Errorf("rate %v, want %v", ok.Rate, want)
	}
	if bad.Status != "failed" || bad.MaxAbs != nil || bad.Rate != nil || bad.Samples == nil {
		t.Errorf("an infinite error must be null, a time must not exist: %+v", bad)
	}
	if no.Status != "unsupported" || no.Reason != "no <such>\nthing" || no.MaxAbs != nil {
		t.Errorf("%+v", no)
	}
}

func TestCSV(t *testing.T) {
	r := sampleReport()
	var b bytes.Buffer
	if err := r.Write(&b, CSV); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(b.String(), "\n"); n != 4 {
		t.Errorf("%d lines, want 4:\n%s", n, b.String())
	}
	rows, err := csv.NewReader(&b).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	cell := func(row int, name string) string {
		for i, n := range rows[0] {
			if n == name {
				return rows[row][i]
			}
		}
		t.Fatalf("no column %s in %v", name, rows[0])
		return ""
	}
	for _, c := range []struct {
		row        int
		name, want string
	}{
		{1, "impl", "coopmat2"}, {1, "kv_heads", "4"}, {1, "causal_align", "bottom-right"}, {1, "device_ns", "104500"},
		{1, "samples", "10"}, {1, "fresh_wall_ns", "150000"}, {1, "checked_rows", "500"},
		{2, "status", "failed"}, {2, "max_abs_error", ""}, {2, "device_ns", ""}, {2, "error_limit", "0.0078"},
		{3, "reason", "no <such> thing"}, {3, "checked_rows", ""},
	} {
		if got := cell(c.row, c.name); got != c.want {
			t.Errorf("row %d, %s = %q, want %q", c.row, c.name, got, c.want)
		}
	}
	if rate, err := strconv.ParseFloat(cell(1, "flop_per_s"), 64); err != nil || math.Abs(rate/r.Results[0].FLOPRate()-1) > 1e-12 {
		t.Errorf("rate %v, want %v", rate, r.Results[0].FLOPRate())
	}
}

// TestMemoryWords has what the line "memory" of a report says.
func TestMemoryWords(t *testing.T) {
	buffers := []vk.NamedMemory{{Name: "x", Peak: 3e6}, {Name: "y", Peak: 2e6}, {Name: "w", Peak: 1e6}, {Name: "loss", Peak: 4}}
	for n, want := range map[int]string{
		0: "",
		1: "7.000 MB of buffers at the most, with all sets that calls rotate through: x 3.000 MB",
		3: "7.000 MB of buffers at the most, with all sets that calls rotate through: x 3.000 MB, y 2.000 MB, w 1.000 MB",
		4: "7.000 MB of buffers at the most, with all sets that calls rotate through: x 3.000 MB, y 2.000 MB, w 1.000 MB, …",
	} {
		m := vk.Memory{Buffers: buffers[:n]}
		if n > 0 {
			m.Peak = 7e6
		}
		if got := memoryWords(m); got != want {
			t.Errorf("%d buffers: %q, want %q", n, got, want)
		}
	}
}

func TestTable(t *testing.T) {
	r := sampleReport()
	r.Wide = true
	var b bytes.Buffer
	if err := r.Write(&b, Table); err != nil {
		t.Fatal(err)
	}
	const want = `device   Test GPU (discrete GPU), driver TestDriver 1.2

problem  attention forward, bfloat16: batch 2, heads 8, kv-heads 4, seqlen 1024, headdim 128, causal (bottom-right)
         4.299 GFLOP and at least 12.65 MB of memory traffic per call
time     device time per call, median of 10 samples; ± its 95 % confidence interval, below six samples their range as min–max in % of it
wall     replayed, recorded: wall clock per call, submitting a recorded call or recording it, too
check    against a float64 reference, on 500 of 16384 rows

impl          time   ±           rate     traffic  replayed  recorded   max|Δ|  Δ/limit  mean|Δ|  check  runs
coopmat2  104.5 µs  3%  41.14 TFLOP/s  121.0 GB/s  121.0 µs  150.0 µs  3.9e-03     0.50  2.5e-04  pass   coopmat2 128x64
coopmat          -                  -           -         -         -     +Inf     +Inf      NaN  FAIL   coopmat 64x64
coopmat FAILED and was not timed: O[0,0,0,1] = NaN
scalar is not supported: no <such> thing
`
	if got := b.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestNarrow: without Wide no line is wider than a terminal, and what people look for is there.
func TestNarrow(t *testing.T) {
	training, err := ParseSuite(TrainingSuite)
	if err != nil {
		t.Fatal(err)
	}
	problems := suiteReport(training, "auto", "coopmat2", "coopmat", "scalar", "unfused")
	problems.Wide = false
	for _, r := range []Report{sampleReport(), problems} {
		var b bytes.Buffer
		if err := r.Write(&b, Table); err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(b.String(), "\n") {
			if n := utf8.RuneCountInString(line); n > TerminalWidth {
				t.Errorf("%d columns: %s", n, line)
			}
		}
		for _, want := range []string{"max|Δ|", "check", "runs", "pass"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("no %s in\n%s", want, b.String())
			}
		}
		for _, wide := range []string{"replayed", "mean|Δ|", "GB/s", "Δ/limit"} {
			if strings.Contains(b.String(), wide) {
				t.Errorf("%s in\n%s", wide, b.String())
			}
		}
	}
}

func TestUnits(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{FormatTime(0.5), "0.500 ns"},
		{FormatTime(999.9), "999.9 ns"},
		{FormatTime(999.96), "1.000 µs"},
		{FormatTime(1234567), "1.235 ms"},
		{FormatTime(12.34e9), "12.34 s"},
		{FormatTime(12345e9), "12345 s"},
		{FormatSI(0, "FLOP/s"), "0 FLOP/s"},
		{FormatSI(440.1e12, "FLOP/s"), "440.1 TFLOP/s"},
		{FormatSI(999.96e9, "B/s"), "1.000 TB/s"},
		{FormatSI(9.9996, "B"), "10.00 B"},
		{FormatSI(5e18, "B"), "5000 PB"},
		{FormatBytes(49152), "48 KiB"},
		{FormatBytes(4292870144), "4 GiB"},
		{FormatBytes(1536), "1.5 KiB"},
		{FormatBytes(0), "0 B"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}

// TestPlusMinus: nothing is called a confidence interval that is none, in tables and in files.
func TestPlusMinus(t *testing.T) {
	for _, c := range []struct {
		samples []float64
		want    string
	}{
		{nil, "-"},
		{[]float64{7}, "∞"},
		{[]float64{90, 100, 120}, "90–120%"},
		{[]float64{90, 95, 100, 110, 120}, "90–120%"},
		{[]float64{90, 95, 99, 101, 110, 120}, "20%"}, // the range is the interval of six, at 97 %
	} {
		if got := Summarize(c.samples).PlusMinus(); got != c.want {
			t.Errorf("%v: %q, want %q", c.samples, got, c.want)
		}
	}
	r := sampleReport()
	for i := range r.Results {
		if ns := r.Results[i].Timing.DeviceNS; len(ns) > 5 {
			r.Results[i].Timing.DeviceNS = ns[:5]
		}
	}
	for _, f := range []Format{Table, Markdown} {
		var b bytes.Buffer
		if err := r.Write(&b, f); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(b.String(), "–") || strings.Contains(b.String(), " 3% ") {
			t.Errorf("%s: no range of five samples:\n%s", f, &b)
		}
	}
	var b bytes.Buffer
	if err := r.Write(&b, JSON); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"device_ns_lo": null`, `"device_ns_hi": null`, `"device_ns_min": `} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %s in\n%s", want, &b)
		}
	}
}
