package compare

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// lines returns benchmark lines with samples in ns around the given medians.
func lines(head string, medians map[string]float64, n int) string {
	var b strings.Builder
	b.WriteString(head)
	for _, name := range []string{"a", "b", "c", "d"} {
		for i := range n {
			if m := medians[name]; m > 0 {
				fmt.Fprintf(&b, "BenchmarkX/impl=%s/dtype=f16/seq=5 1 %v ns/op %v FLOP/s\n", name, m*(1+0.01*float64(i-n/2)), 1e12/m)
			}
		}
	}
	return b.String()
}

const head = "Unit FLOP/s better=higher\ngpu: Test GPU\ncommit: abc\n"

// TestCompare: what is certain and worse is marked, a higher rate is no regression, and three samples
// prove nothing, which is said.
func TestCompare(t *testing.T) {
	compared := func(before, after, unit string) *Report {
		a, err := Read(strings.NewReader(before), "old.txt", unit)
		require.NoError(t, err)
		b, err := Read(strings.NewReader(after), "new.txt", unit)
		require.NoError(t, err)
		r, err := Compare(a, b, unit)
		require.NoError(t, err)
		return r
	}
	before := lines(head, map[string]float64{"a": 1000, "b": 1000, "c": 1000}, 11)
	r := compared(before, lines(strings.ReplaceAll(head, "Test GPU", "Other GPU"), map[string]float64{"a": 1001, "b": 1200, "c": 500, "d": 1}, 11), "sec/op")
	require.Equal(t, r.Changes[1:2], r.Worse(19.9))
	require.Empty(t, r.Worse(20.1))
	s := r.Sheet(5)
	var text strings.Builder
	require.NoError(t, s.Text(&text))
	require.Equal(t, `old      old.txt, gpu Test GPU, commit abc
new      new.txt, gpu Other GPU, commit abc
WARNING  gpu differs: this compares "Test GPU" with "Other GPU", not only two programs
unit     sec/op, median ± its 95 % confidence interval, ∞ below six samples
change   of the median; ~ where the samples may come from one distribution (Mann-Whitney U test, p >= 0.05)

benchmark                     old   ±      new   ±         change      p  samples
X/impl=a/dtype=f16/seq=5  1.000µs  4%  1.001µs  4%              ~  0.748  11, 11
X/impl=b/dtype=f16/seq=5  1.000µs  4%  1.200µs  4%  WORSE +20.00%  0.000  11, 11
X/impl=c/dtype=f16/seq=5  1.000µs  4%  500.0ns  4%        -50.00%  0.000  11, 11
geometric mean of new by old: 0.844 (-15.63%)
only in new.txt: X/impl=d/dtype=f16/seq=5
`, text.String())
	worse := compared(before, lines(head, map[string]float64{"a": 2000, "b": 500}, 11), "FLOP/s").Worse(5)
	require.Len(t, worse, 1)
	require.Equal(t, "X/impl=a/dtype=f16/seq=5", worse[0].Name)
	require.InDelta(t, 50, worse[0].Worse, 1e-9)
	r = compared(lines(head, map[string]float64{"a": 1000}, 3), lines(head, map[string]float64{"a": 9000}, 3), "sec/op")
	require.Empty(t, r.Worse(0))
	require.Contains(t, strings.Join(r.Sheet(0).Sections[0].Notes, "\n"), "need >= 4 samples")
}

// TestErrors has files that no script of tests/cli has.
func TestErrors(t *testing.T) {
	good := lines(head, map[string]float64{"a": 1}, 4)
	for _, c := range []struct{ text, unit, want string }{
		{strings.ReplaceAll(good, "better=higher", "better=never"), "FLOP/s", "x: it does not say which FLOP/s is better"},
		{"BenchmarkX 1 5\n", "sec/op", "x:1: missing unit"},
		{"BenchmarkX 1 -5 ns/op\n", "sec/op", "x: sec/op of X is -5e-09, which is negative or not finite"},
		{"BenchmarkX 1 NaN ns/op\n", "sec/op", "x: sec/op of X is NaN, which"},
	} {
		_, err := Read(strings.NewReader(c.text), "x", c.unit)
		require.ErrorContains(t, err, c.want, c.text)
	}
	_, err := Read(strings.NewReader("BenchmarkX 1 5 fresh-wall-ns/op\n"), "x", "fresh-wall-sec/op")
	require.NoError(t, err)
	a, err := Read(strings.NewReader(good), "a.txt", "sec/op")
	require.NoError(t, err)
	b, err := Read(strings.NewReader(strings.ReplaceAll(good, "impl=a", "impl=b")), "b.txt", "sec/op")
	require.NoError(t, err)
	_, err = Compare(a, b, "sec/op")
	require.EqualError(t, err, "no benchmark is in both a.txt and b.txt")
	b.Better = 1
	_, err = Compare(a, b, "sec/op")
	require.EqualError(t, err, "a.txt and b.txt do not agree on which sec/op is better")
}

// FuzzRead says that no benchmark file makes us panic, and that one that is accepted compares
// with itself: nothing is missing, slower or faster.
func FuzzRead(f *testing.F) {
	f.Add([]byte("gpu: x\nUnit ns/op better=lower\nBenchmarkA/impl=b-8 1 5 ns/op 3 B/s\nBenchmarkA/impl=b-8 1 6 ns/op\n"))
	f.Add([]byte("BenchmarkX 1 -5 ns/op\nBenchmarkX 1 1e400 ns/op\nBenchmarkX 1 0 ns/op\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Read(bytes.NewReader(data), "x", "sec/op")
		if err != nil {
			return
		}
		r, err := Compare(file, file, "sec/op")
		if err != nil {
			return
		}
		if len(r.Changes) != len(file.Order) {
			t.Fatalf("%d changes of %d benchmarks", len(r.Changes), len(file.Order))
		}
		for _, c := range r.Changes {
			if c.Old.Center != c.New.Center || math.IsNaN(c.Old.Center) {
				t.Errorf("%+v", c)
			}
		}
		s := r.Sheet(0.05)
		var b bytes.Buffer
		if err := s.Text(&b); err != nil || bytes.ContainsAny(b.Bytes(), "\x1b\x00\r") {
			t.Errorf("%v: %q", err, b.Bytes())
		}
	})
}
