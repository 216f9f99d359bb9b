package ref

import (
	"slices"

	"github.com/flashvk/flashvk/attention"
)

// Append walks over what attention.Append writes. Append calls key for each new key of each key
// head, and query for each row of Q, with the position whose angles rotate the row; the key's
// position is its place in the sequence too. A sequence without room for its new keys is left as it
// is: Append reports whether every sequence has room.
func Append(p attention.AppendProblem, lens []int, key, query func(r Row, position int)) (room bool) {
	room = true
	for b, n := range lens {
		if n < 0 || n+p.NewKeys > p.SeqKV {
			room = false
			continue
		}
		for h := range p.NumKVHeads {
			for i := range p.NewKeys {
				key(Row{b, h, i}, n+i)
			}
		}
		for h := range p.NumHeads {
			for i := range p.SeqQ {
				query(Row{b, h, i}, max(n+p.NewKeys-p.SeqQ+i, 0))
			}
		}
	}
	return room
}

// RotaryPair returns the places of pair i of RoPE in a row.
func RotaryPair(r attention.RoPE, i int) (x, y int) {
	if r.Interleaved {
		return 2 * i, 2*i + 1
	}
	return i, i + r.Dims/2
}

// Rotate returns a row as RoPE leaves it at a position; cos and sin are (positions, dims/2).
func Rotate[T Float](r attention.RoPE, row []float64, cos, sin []T, position int) []float64 {
	out, half := slices.Clone(row), r.Dims/2
	for i := range half {
		x, y := RotaryPair(r, i)
		c, s := float64(cos[position*half+i]), float64(sin[position*half+i])
		out[x], out[y] = row[x]*c-row[y]*s, row[y]*c+row[x]*s
	}
	return out
}
