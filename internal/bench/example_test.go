package bench_test

import (
	"fmt"

	"github.com/flashvk/flashvk/internal/bench"
)

func ExampleSummarize() {
	s := bench.Summarize([]float64{1210, 1200, 1260, 1190, 1230, 1220, 1200, 1240, 1210, 1900})
	fmt.Printf("%s, ± %.0f%%, %s\n", bench.FormatTime(s.Median), 100*s.Spread(), bench.FormatSI(550e6/s.Median*1e9, "FLOP/s"))
	// Output: 1.215 µs, ± 4%, 452.7 TFLOP/s
}
