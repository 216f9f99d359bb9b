package attention

import (
	"math"

	"github.com/flashvk/flashvk/internal/attention/philox"
)

// Dropout drops each weight of the softmax with probability P, and divides the others by 1-P. LSE
// is the LSE of the softmax before dropout.
//
// Seed, Offset and the place of a weight alone decide whether it is dropped. The place is head h of
// batch b, row i and key j, both counted within the sequence. Word j mod 4 of
//
//	philox.Words((j/4, i, lo(n), hi(n)), (lo(Seed), hi(Seed))),  n = Offset + b*NumHeads + h
//
// is compared with Threshold; the weight is kept if the word is not less. Lo and hi are the halves
// of 64 bits; n wraps around. One call of philox.Words serves four neighbouring keys of a row.
//
// A call uses the offsets from Offset to Offset + Batch*NumHeads - 1. The next call with the same
// seed should begin after them.
type Dropout struct {
	// P is in [0, 1). 0 is off.
	P float64

	// Seeded says that Seed and Offset were chosen. Dropout without it is an error.
	Seeded       bool
	Seed, Offset uint64
}

// On reports whether weights are dropped.
func (d Dropout) On() bool { return d.P != 0 }

// Threshold returns how many of the 2^32 values of a word drop a weight: P in units of 2^-32,
// rounded to nearest, but never all.
func (d Dropout) Threshold() uint32 {
	return uint32(min(math.Round(d.P*(1<<32)), math.MaxUint32))
}

// KeepScale returns the factor of kept weights, 1/(1-P).
func (d Dropout) KeepScale() float64 { return 1 / (1 - d.P) }

// A DropoutRow tells which keys of a row are kept.
type DropoutRow struct {
	key       [2]uint32
	row       uint32
	head      uint64
	threshold uint32
	at        int // the four keys that words belong to: key/4, -1 for none
	words     [4]uint32
}

// DropoutRow returns what p.Dropout does to a row of a batch and head.
func (p Problem) DropoutRow(batch, head, row int) DropoutRow {
	d := p.Dropout
	return DropoutRow{
		key:       [2]uint32{uint32(d.Seed), uint32(d.Seed >> 32)},
		row:       uint32(row),
		head:      d.Offset + uint64(batch*p.NumHeads+head),
		threshold: d.Threshold(),
		at:        -1,
	}
}

// Kept reports whether the weight of a key is kept. Keys in order are fastest.
func (r *DropoutRow) Kept(key int) bool {
	if key/4 != r.at {
		r.at = key / 4
		r.words = philox.Words([4]uint32{uint32(r.at), r.row, uint32(r.head), uint32(r.head >> 32)}, r.key)
	}
	return r.words[key%4] >= r.threshold
}
