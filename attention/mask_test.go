package attention

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sees is the definition of the mask.
func sees(p Problem, i, j int) bool {
	at := i
	if p.CausalAlign == BottomRight {
		at = i + p.SeqKV - p.SeqQ
	}
	w := p.Window
	return !(p.Causal && j > at ||
		w.On && w.Left >= 0 && j < at-w.Left ||
		w.On && w.Right >= 0 && j > at+w.Right)
}

// TestDrawnMasks holds the masks drawn in the docs.
func TestDrawnMasks(t *testing.T) {
	for _, c := range []struct {
		p    Problem
		want string
	}{
		{Problem{SeqQ: 2, SeqKV: 5, Causal: true}, "11110 11111"},
		{Problem{SeqQ: 2, SeqKV: 5, Causal: true, CausalAlign: TopLeft}, "10000 11000"},
		{Problem{SeqQ: 5, SeqKV: 2, Causal: true}, "00 00 00 10 11"},
		{Problem{SeqQ: 5, SeqKV: 2, Causal: true, CausalAlign: TopLeft}, "10 11 11 11 11"},
		{Problem{SeqQ: 3, SeqKV: 5, Window: Window{true, 1, 0}}, "01100 00110 00011"},
		{Problem{SeqQ: 3, SeqKV: 5, Window: Window{true, 1, 1}}, "01110 00111 00011"},
		{Problem{SeqQ: 3, SeqKV: 5, Window: Window{true, 1, -1}}, "01111 00111 00011"},
		{Problem{SeqQ: 3, SeqKV: 5, Window: Window{true, -1, 0}}, "11100 11110 11111"},
		{Problem{SeqQ: 3, SeqKV: 5, Window: Window{true, 1, 2}, Causal: true}, "01100 00110 00011"},
		{Problem{SeqQ: 4, SeqKV: 2, Window: Window{true, 0, 1}, CausalAlign: TopLeft}, "11 01 00 00"},
	} {
		var rows []string
		for i := range c.p.SeqQ {
			lo, hi := c.p.Mask().Keys(i)
			rows = append(rows, strings.Repeat("0", lo)+strings.Repeat("1", hi-lo)+strings.Repeat("0", c.p.SeqKV-hi))
		}
		require.Equal(t, c.want, strings.Join(rows, " "), "%v", c.p)
	}
}

// TestMask compares intervals, counts and tiles with the definition.
func TestMask(t *testing.T) {
	sides := []int{-1, 0, 1, 3, 100}
	for seqQ := 1; seqQ < 9; seqQ++ {
		for seqKV := 1; seqKV < 9; seqKV++ {
			for x := range 2 * 2 * (1 + len(sides)*len(sides)) {
				p := square(seqQ, seqKV)
				p.Causal, p.CausalAlign = x%2 == 1, Align(x/2%2)
				if w := x/4 - 1; w >= 0 {
					p.Window = Window{true, sides[w/len(sides)], sides[w%len(sides)]}
				}
				checkMask(t, p)
			}
		}
	}
}

func checkMask(t *testing.T, p Problem) {
	m := p.Mask()
	require.LessOrEqual(t, max(m.Left, m.Right), p.SeqQ+p.SeqKV) // sums fit 32 bits
	count := 0
	for i := range p.SeqQ {
		lo, hi := m.Keys(i)
		require.True(t, 0 <= lo && lo <= hi && hi <= p.SeqKV, "%v row %d: %d to %d", p, i, lo, hi)
		for j := range p.SeqKV {
			if want := sees(p, i, j); want != (lo <= j && j < hi) {
				t.Fatalf("%v row %d key %d: keys %d to %d, want %v", p, i, j, lo, hi, want)
			}
		}
		count += hi - lo
	}
	require.Equal(t, float64(count), p.Entries(), "%v", p)
	require.Equal(t, float64(32*count), p.FLOPs(), "%v", p)
	for first := range p.SeqQ {
		for last := first; last < p.SeqQ; last++ {
			for tile := 1; tile < 4; tile++ {
				lo, hi := m.KeyTiles(first, last, tile)
				for n := range (p.SeqKV + tile - 1) / tile {
					needed := false
					for i := first; i <= last; i++ {
						for j := n * tile; j < min((n+1)*tile, p.SeqKV); j++ {
							needed = needed || sees(p, i, j)
						}
					}
					if needed != (lo <= n && n < hi) {
						t.Fatalf("%v rows %d to %d, tile %d of %d keys: needed %v, tiles %d to %d", p, first, last, n, tile, needed, lo, hi)
					}
				}
			}
		}
	}
}

// TestEntriesLarge: the area of a long window, in closed form.
func TestEntriesLarge(t *testing.T) {
	p := square(205000, 205000)
	p.Causal, p.Window = true, Window{true, 512, 0}
	require.Equal(t, float64(205000*513-512*513/2), p.Entries())
	p.Window = Window{}
	require.Equal(t, 205000.0*205001/2, p.Entries())
}

// TestEmptySequences: the sequences of a Varlen may have no row or no key.
func TestEmptySequences(t *testing.T) {
	p := square(3, 4)
	p.Causal = true
	require.Zero(t, p.MaskOf(0, 4).Entries())
	require.Zero(t, p.MaskOf(3, 0).Entries())
	lo, hi := p.MaskOf(3, 0).KeyTiles(0, 2, 2)
	require.Equal(t, lo, hi)
}
