package train

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRuns compares runs with sets of numbers.
func TestRuns(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		// Numbers of n tasks of so many rows: a part of each, or of some, or all.
		n, rows := 1+rng.IntN(3), 1+rng.IntN(4)
		draw := func() (runs, map[int]bool) {
			first, task := rng.IntN(rows), rng.IntN(n)
			size, tasks := 1+rng.IntN(rows-first), 1+rng.IntN(n-task)
			set := map[int]bool{}
			for i := range tasks {
				for j := range size {
					set[(task+i)*rows+first+j] = true
				}
			}
			at := task*rows + first
			return run(at, at+1).repeated(size, 1).repeated(tasks, rows), set
		}
		a, set := draw()
		b, other := draw()
		require.Len(t, set, a.size())
		both, same := map[int]bool{}, len(set) == len(other)
		for i := range set {
			both[i] = true
			same = same && other[i]
		}
		for i := range other {
			both[i] = true
		}
		require.Len(t, both, a.and(b).size(), "%v and %v", a, b)
		require.Equal(t, len(both) < len(set)+len(other), a.meets(b), "%v meets %v", a, b)
		require.Equal(t, same, a.equal(b), "%v is %v", a, b)
		for _, x := range a.and(b).spread().list {
			for i := x[0]; i < x[1]; i++ {
				require.True(t, both[i])
			}
		}
	}
}
