package bench

import (
	"math"
	"runtime"
	"slices"
	"testing"

	"github.com/flashvk/flashvk/dtype"
)

func TestNormal(t *testing.T) {
	const n = 3*normalChunk + 17
	for _, dt := range dtype.All() {
		x := Normal(dt, n, 1)
		var sum, squares, above float64
		for i, v := range x {
			if v != dt.Round(v) {
				t.Fatalf("%v: element %d, %v, is not a value of the format", dt, i, v)
			}
			sum += float64(v)
			squares += float64(v) * float64(v)
			if math.Abs(float64(v)) > 2 {
				above++
			}
		}
		// Five standard errors: 1/√n of the mean, √(2/n) of the variance.
		if mean := sum / n; math.Abs(mean) > 5/math.Sqrt(n) {
			t.Errorf("%v: mean %v", dt, mean)
		}
		// Rounding to 8 bits adds a variance of about 2^-16/3 * 2.
		if v := squares / n; math.Abs(v-1) > 5*math.Sqrt(2.0/n)+1e-4 {
			t.Errorf("%v: variance %v", dt, v)
		}
		if share := above / n; math.Abs(share-0.0455) > 0.005 {
			t.Errorf("%v: %v of the values are beyond 2, want 0.0455", dt, share)
		}
		if slices.Equal(x[:normalChunk], x[normalChunk:2*normalChunk]) {
			t.Errorf("%v: two chunks are equal", dt)
		}
		if slices.Equal(x, Normal(dt, n, 2)) {
			t.Errorf("%v: seeds 1 and 2 give the same numbers", dt)
		}
		procs := runtime.GOMAXPROCS(1)
		again := Normal(dt, n, 1)
		runtime.GOMAXPROCS(procs)
		if !slices.Equal(x, again) {
			t.Errorf("%v: one processor gives other numbers", dt)
		}
	}
}

func BenchmarkNormal(b *testing.B) {
	const n = 1 << 22
	b.SetBytes(n * 2)
	for b.Loop() {
		Normal(dtype.Float16, n, 1)
	}
}
