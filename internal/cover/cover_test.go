package cover_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/cover"
)

// TestPairs wants every pair of values that occurs, in fewer cases, cases of a kernel together,
// and every trait.
func TestPairs(t *testing.T) {
	type kind [3]int
	var cases []kind
	for i := range 54 { // each of 27 twice
		cases = append(cases, kind{i % 3, i / 3 % 3, i / 9 % 3})
	}
	values := func(k kind) []any { return []any{k[0], k[1], k[2]} }
	none := func(kind) []any { return nil }
	some := cover.Pairs(cases, values, none)
	count := make(map[kind]int)
	seen := make(map[[4]int]bool)
	for _, k := range some {
		count[k]++
		for i := range k {
			for j := range i {
				seen[[4]int{i, j, k[i], k[j]}] = true
			}
		}
	}
	if len(seen) != 27 || len(count) < 9 || len(count) > 13 {
		t.Errorf("%d of 27 pairs of values in %d kinds of cases, want all in 9 or a few more", len(seen), len(count))
	}
	for k, n := range count {
		require.EqualValues(t, 2, n, k)
	}
	if one := cover.Pairs(cases[:1], values, none); len(one) != 1 {
		t.Errorf("%v of one case", one)
	}
	all := cover.Pairs(cases, values, func(k kind) []any { return []any{0, k} })
	require.Len(t, all, len(cases))
}

// TestEach wants every value that occurs, in as few kinds of cases, and cases of a kernel together.
func TestEach(t *testing.T) {
	type kind [2]int
	var cases []kind
	for i := range 24 { // each of 12 twice
		cases = append(cases, kind{i % 3, i / 3 % 4})
	}
	seen, count := make(map[kind]bool), make(map[kind]int)
	for _, k := range cover.Each(cases, func(k kind) []any { return []any{k[0], k[1]} }) {
		count[k]++
		seen[kind{0, k[0]}], seen[kind{1, k[1]}] = true, true
	}
	require.Equal(t, 3+4, len(seen))
	require.Len(t, count, 4)
	for k, n := range count {
		require.EqualValues(t, 2, n, k)
	}
}
