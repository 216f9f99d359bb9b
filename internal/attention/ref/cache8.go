package ref

import (
	"math"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// A Cache8 is K or V of a cache of 8 bits (attention.CacheFormat).
type Cache8[T Float] struct {
	Stored []T // numbers of e4m3, or the integers of q8_0
	Scales []T // of q8_0: of each block
	Values []T // what they stand for
}

// Quantise returns rows of dim elements as Append stores them. Rows of e4m3 have the scale that
// scale returns of a row's number; nil: 1. A NaN is stored as NaN, in q8_0 with its block, though
// Append has zeros there: NaN marks elements that no kernel may read.
func Quantise[T Float](format attention.CacheFormat, x []T, dim int, scale func(row int) T) Cache8[T] {
	c := Cache8[T]{Stored: make([]T, len(x))}
	if format == attention.CacheE4M3 {
		for i := range x {
			s := T(1)
			if scale != nil {
				s = scale(i / dim)
			}
			c.Stored[i] = T(dtype.QuantE4M3.Round(float64(x[i]), float64(s)))
		}
		c.Values = Values8(format, c.Stored, dim, scale, nil)
		return c
	}
	c.Scales = make([]T, len(x)/attention.QuantBlock)
	for b := range c.Scales {
		at := b * attention.QuantBlock
		block := x[at : at+attention.QuantBlock]
		top := 0.0
		for _, y := range block {
			top = max(top, math.Abs(float64(y)))
		}
		d := dtype.QuantQ8.Scale(top)
		c.Scales[b] = T(d)
		for i, y := range block {
			c.Stored[at+i] = T(dtype.QuantQ8.Round(float64(y), d))
		}
	}
	c.Values = Values8(format, c.Stored, dim, nil, c.Scales)
	return c
}

// Values8 returns the values of stored rows of dim elements. A row of e4m3 has the scale that scale
// returns for the row's number; nil: 1. Scales has the scales of the blocks of q8_0.
func Values8[T Float](format attention.CacheFormat, stored []T, dim int, scale func(row int) T, scales []T) []T {
	x := make([]T, len(stored))
	for i, y := range stored {
		switch {
		case format == attention.CacheQ8_0:
			x[i] = T(dtype.Float16.Round(float32(y) * float32(scales[i/attention.QuantBlock])))
		case scale != nil:
			x[i] = y * scale(i/dim)
		default:
			x[i] = y
		}
	}
	return x
}

// HeadScale returns the scale of each row of K or V in memory, given the scales of the key heads of
// an e4m3 cache: one for each head, one for all, or none. KeysFirst is as in DecodeInputs.
func HeadScale[T Float](p *attention.DecodeProblem, keysFirst bool, scales []T) func(row int) T {
	switch {
	case len(scales) == 0:
		return nil
	case len(scales) == 1:
		return func(int) T { return scales[0] }
	case keysFirst:
		return func(row int) T { return scales[row%p.NumKVHeads] }
	}
	keys := p.KShape()[2]
	return func(row int) T { return scales[row/keys%p.NumKVHeads] }
}
