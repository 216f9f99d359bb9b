package parallel_test

import (
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/parallel"
)

// TestParallel wants every i once, whatever their number, and as many workers as there are
// processors or fewer.
func TestParallel(t *testing.T) {
	for _, n := range []int{0, 1, 2, 3, 100} {
		var workers atomic.Int32
		for name, run := range map[string]func(visit func(i int)){
			"For": func(visit func(i int)) { parallel.For(n, visit) },
			"Workers": func(visit func(i int)) {
				parallel.Workers(n, func() func(i int) {
					workers.Add(1)
					return visit
				})
			},
			"Pieces": func(visit func(i int)) {
				parallel.Pieces(n, func(from, to int) {
					for i := from; i < to; i++ {
						visit(i)
					}
				})
			},
		} {
			seen, once := make([]int32, n), make([]int32, n)
			run(func(i int) { atomic.AddInt32(&seen[i], 1) })
			for i := range once {
				once[i] = 1
			}
			require.Equal(t, once, seen, name)
		}
		most := min(n, runtime.GOMAXPROCS(0))
		require.True(t, int(workers.Load()) <= most && (n == 0) == (workers.Load() == 0), "%d workers", workers.Load())
	}
}

// TestParallelNested calls For within For: no goroutine waits for one that waits for it.
func TestParallelNested(t *testing.T) {
	var sum atomic.Int64
	parallel.For(20, func(i int) {
		parallel.For(20, func(j int) { sum.Add(int64(i * j)) })
	})
	require.EqualValues(t, 190*190, sum.Load())
}
