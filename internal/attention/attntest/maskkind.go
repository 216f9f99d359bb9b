package attntest

import (
	"math"

	"github.com/flashvk/flashvk/internal/enum"
)

// A MaskKind says which keys of a batch a key mask hides.
type MaskKind uint8

// The kinds of key masks. All but the first hide whole tiles of keys.
const (
	// RandomMask shows three keys in four, at random, and none in the third batch.
	RandomMask MaskKind = iota
	// RunsMask hides and shows runs of keys, of lengths from 1 to 256 and more.
	RunsMask
	// PaddedMask shows the first keys: a batch of sequences that are filled up at the end.
	PaddedMask
	// LeftPaddedMask shows the last keys.
	LeftPaddedMask
	// SparseMask shows a few single keys, and in one batch of four, at random, none.
	SparseMask

	// NumMasks is how many there are.
	NumMasks
)

// String returns the name as it stands in messages.
func (m MaskKind) String() string {
	return enum.Names[MaskKind]{"random", "runs", "padded", "left-padded", "sparse"}.Of(m)
}

// visible says for each of n keys whether a kind other than RandomMask shows it.
func (g generator) visible(kind MaskKind, n int) []bool {
	keys := make([]bool, n)
	show := func(from, to int) {
		for j := from; j < to; j++ {
			keys[j] = true
		}
	}
	switch kind {
	case RunsMask:
		shown := g.IntN(2) == 0
		for j := 0; j < n; shown = !shown {
			end := min(n, j+int(math.Exp2(8.5*g.Float64())))
			if shown {
				show(j, end)
			}
			j = end
		}
	case PaddedMask:
		show(0, g.IntN(n+1))
	case LeftPaddedMask:
		show(g.IntN(n+1), n)
	case SparseMask:
		if g.IntN(4) > 0 {
			for range 1 + n/200 {
				keys[g.IntN(n)] = true
			}
		}
	}
	return keys
}
