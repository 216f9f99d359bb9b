package bench

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

// TestSuites compares the suites with the reports that they repeat.
func TestSuites(t *testing.T) {
	for _, c := range []struct {
		name        string
		n           int
		first, last string
		smallLast   string
	}{
		{"training", 8,
			"dtype=bfloat16/batch=2/heads=8/kv_heads=4/seq_q=1024/seq_kv=1024/head_dim=128/causal=true",
			"dtype=float16/batch=8/heads=32/kv_heads=32/seq_q=2048/seq_kv=2048/head_dim=128/causal=true",
			"dtype=float16/batch=1/heads=8/kv_heads=8/seq_q=128/seq_kv=128/head_dim=128/causal=true"},
		{"decoder", 2,
			"dtype=float16/batch=1/heads=8/kv_heads=8/seq_q=1024/seq_kv=1024/head_dim=64/causal=false",
			"dtype=float16/batch=1/heads=8/kv_heads=8/seq_q=1024/seq_kv=1024/head_dim=64/causal=true",
			"dtype=float16/batch=1/heads=2/kv_heads=2/seq_q=256/seq_kv=256/head_dim=64/causal=true"},
		{"length", 6,
			"dtype=float16/batch=4/heads=8/kv_heads=8/seq_q=256/seq_kv=256/head_dim=64/causal=false",
			"dtype=float16/batch=4/heads=8/kv_heads=8/seq_q=4864/seq_kv=4864/head_dim=64/causal=false",
			"dtype=float16/batch=1/heads=1/kv_heads=1/seq_q=304/seq_kv=304/head_dim=64/causal=false"},
		{"latency", 9,
			"dtype=float16/batch=8/heads=8/kv_heads=8/seq_q=128/seq_kv=128/head_dim=64/causal=true",
			"dtype=float16/batch=32/heads=8/kv_heads=8/seq_q=512/seq_kv=512/head_dim=64/causal=true",
			"dtype=float16/batch=4/heads=2/kv_heads=2/seq_q=128/seq_kv=128/head_dim=64/causal=true"},
		{"rectangular", 3,
			"dtype=bfloat16/batch=32/heads=8/kv_heads=8/seq_q=564/seq_kv=64/head_dim=64/causal=false",
			"dtype=bfloat16/batch=1/heads=8/kv_heads=8/seq_q=205000/seq_kv=200000/head_dim=64/causal=false",
			"dtype=bfloat16/batch=1/heads=1/kv_heads=1/seq_q=1601/seq_kv=1562/head_dim=64/causal=false"},
		{"throughput", 36,
			"dtype=float16/batch=32/heads=32/kv_heads=32/seq_q=512/seq_kv=512/head_dim=64/causal=false",
			"dtype=float16/batch=1/heads=8/kv_heads=8/seq_q=16384/seq_kv=16384/head_dim=256/causal=true",
			"dtype=float16/batch=1/heads=1/kv_heads=1/seq_q=256/seq_kv=256/head_dim=256/causal=true"},
	} {
		s, err := ParseSuite(c.name)
		require.NoError(t, err)
		require.Len(t, s.Problems, c.n, c.name)
		require.Equal(t, c.first, s.Problems[0].String())
		require.Equal(t, c.last, s.Problems[c.n-1].String())
		small := s.Small()
		require.Equal(t, c.smallLast, small.Problems[c.n-1].String())
		require.Equal(t, c.last, s.Problems[c.n-1].String(), "Small changed the suite that it was called on")
		require.Equal(t, c.name+"-small", small.name())
		for i, p := range append(s.Problems, small.Problems...) {
			require.NoError(t, p.Validate(), "%s, case %d", c.name, i)
		}
		for i, p := range small.Problems { // a group of heads stays one
			want := s.Problems[i].NumHeads / s.Problems[i].NumKVHeads
			require.Equal(t, want, p.NumHeads/p.NumKVHeads)
		}
	}
	require.Len(t, Suites(), 6, "a suite is not in this table")
	fa, err := ParseSuite("throughput")
	require.NoError(t, err)
	for _, p := range fa.Problems {
		require.Equal(t, 16384, p.Batch*p.SeqQ)
		require.Equal(t, 2048, p.NumHeads*p.HeadDim)
	}
	bf, err := fa.Retype(dtype.BFloat16)
	require.NoError(t, err)
	require.Equal(t, dtype.BFloat16, bf.Problems[35].DType)
	require.Equal(t, dtype.Float16, fa.Problems[35].DType)
}

// suiteReport has, for each problem of a suite, a time that doubles from one
// implementation to the next; scalar is wrong on the second problem and auto is
// missing on the last.
func suiteReport(s *Suite, impls ...string) Report {
	r := Report{Env: Environment{Device: "Test GPU", DeviceType: "discrete GPU", Driver: "TestDriver 1.2"}, Suite: s, Wide: true}
	for i, p := range s.Problems {
		ns := p.FLOPs() / 100e12 * 1e9 // 100 TFLOP/s
		for _, impl := range impls {
			x := Result{Kernel: "attention_fwd", Impl: impl, Choice: impl + " 64x64", Subject: subjectOf(p), Status: StatusOK,
				Check: Check{Rows: 10, OfRows: 10, Counted: "rows", MaxAbs: 1e-3, MeanAbs: 1e-4, Limit: 2e-3}, Timing: Timing{DeviceNS: []float64{ns, ns * 1.1, ns * 0.9}}}
			ns *= 2
			switch {
			case i == 1 && impl == "scalar":
				x.Status, x.Reason, x.Timing = StatusFailed, "O[0] is 1", Timing{}
			case i == len(s.Problems)-1 && impl == "auto", impl == "coopmat":
				x.Status, x.Reason, x.Timing = StatusUnsupported, "too large", Timing{}
			}
			r.Results = append(r.Results, x)
		}
	}
	return r
}

func suiteText(t *testing.T, name string, impls ...string) []string {
	s, err := ParseSuite(name)
	require.NoError(t, err)
	s.Problems = s.Problems[:3]
	var b strings.Builder
	require.NoError(t, suiteReport(s, impls...).Write(&b, Table))
	return strings.Split(b.String(), "\n")
}

func TestSuiteTable(t *testing.T) {
	lines := suiteText(t, "length", "auto", "coopmat", "scalar", "unfused")
	require.Equal(t, strings.Split(`device   Test GPU (discrete GPU), driver TestDriver 1.2

suite    length: float16, batch 4, heads 8, headdim 64, no mask: rates against the length
pass     forward
auto     the path that flashvk takes by itself, named under runs; other paths are forced
unfused  GEMM, softmax, GEMM with all scores in memory: what PyTorch calls MATH
time     device time per call, median of samples; of auto, ± its 95 % confidence interval, below six samples their range as min–max in % of it
ratio    time/auto is the time of the column before it by that of auto: above 1, auto is faster
check    against a float64 reference, on all rows

batch  heads  seqlen  auto TFLOP/s  coopmat TFLOP/s  scalar TFLOP/s  unfused TFLOP/s  time/auto  auto µs        ±   max|Δ|  mean|Δ|  check  runs
    4      8     256           100                -            25.0             12.5      8.00x     5.37  90–110%  1.0e-03  1.0e-04  pass   auto 64x64
    4      8     512           100                -            FAIL             12.5      8.00x     21.5  90–110%  1.0e-03  1.0e-04  pass   auto 64x64
    4      8    1024             -                -            25.0             12.5          -        -        -        -        -  -      -
coopmat is not supported, rows 1-3: too large
scalar FAILED and was not timed, row 2: O[0] is 1
auto is not supported, row 3: too large
`, "\n"), lines)

	lines = suiteText(t, "latency", "scalar", "unfused")
	require.Contains(t, lines, "seqlen  batch  heads  scalar µs/seq  unfused µs/seq  time/scalar  vs 5 µs  TFLOP/s        ±   max|Δ|  mean|Δ|  check  runs")
	// batch 8, heads 8: 2*64*8*8*(128*129/2)*2 operations at 100 TFLOP/s are
	// 1.3526 µs, 0.169 µs for each of 8.
	require.Contains(t, lines, "   128      8      8          0.169           0.338        2.00x    29.6x      100  90–110%  1.0e-03  1.0e-04  pass   scalar 64x64")
	require.Contains(t, lines, "   128     16      8           FAIL           0.338            -        -        -        -  1.0e-03  1.0e-04  FAIL   scalar 64x64")

	lines = suiteText(t, "training", "scalar")
	require.Contains(t, lines, "batch  heads  kv  seqlen  dim  dtype     scalar µs  TFLOP/s        ±   max|Δ|  mean|Δ|  check  runs")
}

// TestUnitOfSize: rates and times are in the first unit in which the largest is 1 or more.
func TestUnitOfSize(t *testing.T) {
	for _, c := range []struct {
		unit unit
		most float64
		want unit
		by   float64
	}{
		{teraflops, 439, teraflops, 1}, {teraflops, 0.0215, gigaflops, 1e3}, {teraflops, 0.000215, megaflops, 1e6}, {teraflops, 1e-9, megaflops, 1e6},
		{milliseconds, 1, milliseconds, 1}, {milliseconds, 0.9, microseconds, 1e3}, {perSequence, 0.1, perSequence, 1}, {teraflops, 0, teraflops, 1},
	} {
		u, by := c.unit.fit(c.most)
		require.Equal(t, c.want, u)
		require.InDelta(t, c.by, by, 1e-9)
	}
	s, err := ParseSuite("length")
	require.NoError(t, err)
	s.Problems = s.Problems[:2]
	r := suiteReport(s, "auto")
	for i := range r.Results {
		for j := range r.Results[i].Timing.DeviceNS {
			r.Results[i].Timing.DeviceNS[j] *= 1e5 // a CPU's
		}
	}
	section := r.Sheet().Sections[0]
	require.Equal(t, "auto GFLOP/s", section.Columns[3].Name)
	require.Equal(t, "1.00", section.Rows[0][3])
	require.Equal(t, "auto ms", section.Columns[4].Name)
}

// TestSuiteSizes says that every column of every suite exists.
func TestSuiteSizes(t *testing.T) {
	for _, s := range Suites() {
		for _, name := range s.sizes {
			require.NotEmpty(t, sizeOf(subjectOf(s.Problems[0]), name))
		}
	}
	require.Panics(t, func() { sizeOf(&Subject{}, "depth") })
}

// TestParseSuite: a suite is found by its name alone.
func TestParseSuite(t *testing.T) {
	s, err := ParseSuite("rectangular")
	require.NoError(t, err)
	require.Equal(t, "rectangular", s.name())
	_, err = ParseSuite("seed1")
	require.EqualError(t, err, `"seed1" is not one of training, decoder, length, latency, rectangular, throughput`)
}

func TestSuiteKey(t *testing.T) {
	s, err := ParseSuite("decoder")
	require.NoError(t, err)
	var text strings.Builder
	small := s.Small()
	require.NoError(t, suiteReport(&small, "scalar").Write(&text, Benchfmt))
	require.Contains(t, text.String(), "\nsuite: decoder-small\n")
	text.Reset()
	require.NoError(t, suiteReport(s, "scalar").Write(&text, CSV))
	require.Contains(t, text.String(), ",decoder,")
}

func TestSignificant(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.012345: "0.0123", 99.96: "100", 9.996: "10.0", 1.2345: "1.23", 12.345: "12.3", 123.45: "123", 12345.6: "12346", -0.5: "-0.500"} {
		require.Equal(t, want, significant(x))
	}
	require.Equal(t, "rows 1-3, 5, 7-8", ranges([]int{1, 2, 3, 5, 7, 8}))
	require.Equal(t, "row 4", ranges([]int{4}))
}
