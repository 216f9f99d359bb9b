package cover_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/cover"
)

// TestPairs wants every pair of values that occurs, or every value, in fewer cases, cases of a kernel
// together, and every trait.
func TestPairs(t *testing.T) {
	type kind [3]int
	var cases []kind
	for i := range 54 { // each of 27 twice
		cases = append(cases, kind{i % 3, i / 3 % 3, i / 9 % 3})
	}
	values := func(k kind) []any { return []any{k[0], k[1], k[2]} }
	none := func(kind) []any { return nil }
	for _, x := range []struct {
		name               string
		some               []kind
		pairs, least, most int // pairs of values, a value with itself too; kinds
	}{
		{"pairs", cover.Pairs(cases, values, none), 27 + 9, 9, 13},
		{"each", cover.Each(cases, values), 9, 3, 3},
	} {
		count, seen := make(map[kind]int), make(map[[4]int]bool)
		for _, k := range x.some {
			count[k]++
			for i := range k {
				for j := range i + 1 {
					if i == j || x.name == "pairs" {
						seen[[4]int{i, j, k[i], k[j]}] = true
					}
				}
			}
		}
		require.Len(t, seen, x.pairs, x.name)
		require.GreaterOrEqual(t, len(count), x.least, x.name)
		require.LessOrEqual(t, len(count), x.most, x.name)
		for _, n := range count {
			require.Equal(t, 2, n)
		}
	}
	require.Len(t, cover.Pairs(cases[:1], values, none), 1)
	require.Len(t, cover.Pairs(cases, values, func(k kind) []any { return []any{0, k} }), len(cases))
}
