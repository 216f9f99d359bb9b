package train

import (
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRepeat compares sets of numbers with loops: parts of n tasks, apart, side by side, and on top of
// one another.
func TestRepeat(t *testing.T) {
	for n := 1; n < 20; n++ {
		for stride := range 12 {
			want := new(big.Int)
			for i := range n {
				for j := 3; j < 8; j++ {
					want.SetBit(want, i*stride+j, 1)
				}
			}
			got := repeat(span(3, 8), n, stride)
			require.Zero(t, want.Cmp(got), "%d times, %d apart: %b", n, stride, got)
			require.Equal(t, n == 1 || stride >= 5, count(got) == 5*n)
		}
	}
}
