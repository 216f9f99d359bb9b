package ref

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/flashvk/flashvk/attention"
)

// AllRows returns every row of p, one batch and head after the other. With
// Varlen, in has the lengths of the sequences.
func AllRows[T Float](in Inputs[T], p attention.Problem) []Row {
	rows := make([]Row, in.NumRows(p))
	for n := range rows {
		rows[n] = in.Row(p, n)
	}
	return rows
}

// SampleRows returns n rows of p, or all of them if p has no more than n. The
// first and the last row of the problem are always among them; the others are
// random, spread evenly over the rows of all batches and heads. The same
// problem and n give the same rows. n must be positive.
func SampleRows[T Float](in Inputs[T], p attention.Problem, n int) []Row {
	total := in.NumRows(p)
	if n >= total {
		return AllRows(in, p)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	rows := make([]Row, n)
	for x := range rows {
		from, to := x*total/n, (x+1)*total/n
		rows[x] = in.Row(p, from+rng.IntN(to-from))
	}
	rows[0] = in.Row(p, 0)
	if n > 1 {
		rows[n-1] = in.Row(p, total-1)
	}
	return rows
}

// A chunk is a set of query rows that read the same key head. The query heads
// of one key head are neighbours, so a chunk may span several of them.
type chunk struct {
	batch, kv int   // the key head
	rows      []Row // in order
	o, lse    []int // row x's results are rows o[x] and lse[x] of the outputs
}

// chunks splits rows into chunks of at most size rows, whose results are in
// the order of rows. rows == nil stands for all rows, with results in the
// order of O and LSE.
func chunks[T Float](in *Inputs[T], p attention.Problem, rows []Row, size int) ([]chunk, error) {
	l := in.places(p)
	var o, lse []int
	if rows == nil {
		rows = AllRows(*in, p)
		o, lse = make([]int, len(rows)), make([]int, len(rows))
		for x, r := range rows {
			o[x], lse[x] = l.query(r), l.lse(r)
		}
	} else {
		for _, r := range rows {
			if r.Batch < 0 || r.Batch >= p.Batch || r.Head < 0 || r.Head >= p.NumHeads || r.Row < 0 || r.Row >= l.mask(r.Batch).SeqQ {
				return nil, fmt.Errorf("attention: row (%d, %d, %d) is outside (batch, num_heads, seq_q) = (%d, %d, %d)",
					r.Batch, r.Head, r.Row, p.Batch, p.NumHeads, p.SeqQ)
			}
		}
		o = make([]int, len(rows))
		for x := range o {
			o[x] = x
		}
		slices.SortStableFunc(o, func(a, b int) int {
			return cmp.Or(cmp.Compare(rows[a].Batch, rows[b].Batch), cmp.Compare(rows[a].Head, rows[b].Head), cmp.Compare(rows[a].Row, rows[b].Row))
		})
		sorted := make([]Row, len(rows))
		for x, at := range o {
			sorted[x] = rows[at]
		}
		rows, lse = sorted, o
	}
	perKV := p.NumHeads / p.NumKVHeads
	var list []chunk
	for first := 0; first < len(rows); {
		r, end := rows[first], first+1
		for end < len(rows) && end-first < size && rows[end].Batch == r.Batch && rows[end].Head/perKV == r.Head/perKV {
			end++
		}
		list = append(list, chunk{r.Batch, r.Head / perKV, rows[first:end], o[first:end], lse[first:end]})
		first = end
	}
	return list, nil
}

// span returns the keys lo to hi-1: the mask shows each of them to some row of the chunk.
func (c chunk) span(mask attention.Mask) (lo, hi int) {
	lo = mask.SeqKV
	for _, r := range c.rows {
		from, to := mask.Keys(r.Row)
		if from < to {
			lo, hi = min(lo, from), max(hi, to)
		}
	}
	return min(lo, hi), hi
}
