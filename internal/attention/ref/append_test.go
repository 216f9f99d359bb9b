package ref

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
)

// TestAppend has a sequence with room for two new keys, one of a key too many, and no sequence.
func TestAppend(t *testing.T) {
	p := attention.AppendProblem{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
		Batch: 3, NumHeads: 2, NumKVHeads: 1, SeqQ: 3, SeqKV: 8, HeadDim: 8,
	}, NewKeys: 2}}
	var keys, queries []Row
	at := map[Row]int{}
	key := func(r Row, position int) { keys, at[r] = append(keys, r), position }
	require.False(t, Append(p, []int{0, 7, -1}, key, func(r Row, position int) {
		queries = append(queries, r)
		require.Equal(t, []int{0, 0, 1}[r.Row], position) // no row is before the first key
	}))
	require.Equal(t, []Row{{0, 0, 0}, {0, 0, 1}}, keys)
	require.Len(t, queries, 6)
	require.True(t, Append(p, []int{5, 6, 0}, key, func(Row, int) {}))
	require.Equal(t, map[Row]int{{0, 0, 0}: 5, {0, 0, 1}: 6, {1, 0, 0}: 6, {1, 0, 1}: 7, {2, 0, 0}: 0, {2, 0, 1}: 1}, at)
}

// TestRotate turns the pairs of a row by a right angle and by none, at the second position.
func TestRotate(t *testing.T) {
	row := []float64{1, 2, 3, 4, 5}
	cos, sin := []float32{9, 9, 0, 1}, []float32{9, 9, 1, 0}
	require.Equal(t, []float64{-3, 2, 1, 4, 5}, Rotate(attention.RoPE{Dims: 4}, row, cos, sin, 1))
	require.Equal(t, []float64{-2, 1, 3, 4, 5}, Rotate(attention.RoPE{Dims: 4, Interleaved: true}, row, cos, sin, 1))
	require.Equal(t, row, Rotate(attention.RoPE{}, row, cos, sin, 1))
}
