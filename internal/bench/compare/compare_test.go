package compare

import (
	"bytes"
	"math"
	"testing"
)

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
