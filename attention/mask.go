package attention

// A Mask has the keys that each row of one sequence sees by its position: Causal, CausalAlign and
// Window. Row i sees the keys
//
//	max(0, i + Shift - Left) <= j <= min(SeqKV - 1, i + Shift + Right)
//
// Problem.Causal and Window have drawings. KeyMask, and -Inf in a bias, hide more keys.
//
// All numbers are at most SeqQ + SeqKV. An unlimited side of a window is SeqQ + SeqKV, which hides
// nothing.
type Mask struct {
	SeqQ, SeqKV int
	Shift       int // row i is at key i + Shift
	Left, Right int // keys seen before and after that
}

// Mask returns the mask of sequences of SeqQ and SeqKV.
func (p Problem) Mask() Mask { return p.MaskOf(p.SeqQ, p.SeqKV) }

// MaskOf returns the mask of a sequence of other lengths, for Varlen; they may be 0.
func (p Problem) MaskOf(seqQ, seqKV int) Mask {
	all := seqQ + seqKV
	m := Mask{SeqQ: seqQ, SeqKV: seqKV, Left: all, Right: all}
	if p.CausalAlign == BottomRight {
		m.Shift = seqKV - seqQ
	}
	if p.Window.On && p.Window.Left != Unlimited {
		m.Left = min(p.Window.Left, all)
	}
	if p.Window.On && p.Window.Right != Unlimited {
		m.Right = min(p.Window.Right, all)
	}
	if p.Causal {
		m.Right = 0
	}
	return m
}

// Keys returns the keys that row i sees, lo to hi-1; none if lo = hi. Neither bound decreases from
// a row to the next.
func (m Mask) Keys(i int) (lo, hi int) {
	at := i + m.Shift
	return min(max(at-m.Left, 0), m.SeqKV), min(max(at+m.Right+1, 0), m.SeqKV)
}

// KeyTiles returns the tiles of keys that the rows first to last need, lo to hi-1; none if lo = hi.
// Tile t has the keys t*tile to t*tile+tile-1. Other tiles are hidden from all of these rows.
func (m Mask) KeyTiles(first, last, tile int) (lo, hi int) {
	from, _ := m.Keys(first)
	_, to := m.Keys(last)
	if from >= to {
		return 0, 0
	}
	return from / tile, (to + tile - 1) / tile
}

// Entries returns the number of pairs of a row and a key that it sees.
func (m Mask) Entries() float64 {
	// Row i sees hi - lo keys, and each is a ramp between two plateaus.
	return m.ramp(m.Shift+m.Right+1) - m.ramp(m.Shift-m.Left)
}

// ramp returns the sum of clamp(i + shift, 0, SeqKV) over all rows i. Rows
// first to full-1 are on the ramp, rows from full on are at SeqKV.
func (m Mask) ramp(shift int) float64 {
	first := min(max(-shift, 0), m.SeqQ)
	full := min(max(m.SeqKV-shift, first), m.SeqQ)
	ramp := float64(full-first) * (float64(first+shift) + float64(full+shift-1)) / 2
	return ramp + float64(m.SeqQ-full)*float64(m.SeqKV)
}
