// Package ref holds what attention kernels are judged by: a float64 reference, a plain program in the
// storage type, and the tolerances that follow from them. It uses no device.
//
//	                          arithmetic   rounds to DType   used as
//	Forward, Backward         float64      nothing           the truth
//	Plain, PlainBackward      float32      P, O, dX, W       the size of an honest error
//
// All have all features of attention.Problem, on contiguous slices in logical order. Inputs are
// []float32 or []float64 with values that p.DType can store; results are []float64.
//
// How a kernel's result is checked (tolerance.go derives the bounds):
//
//	q, k, v ──┬── kernel ──────────── got ──┐
//	          ├── Forward ─────────── want ─┼── |got-want| <= times*|plain-want| + rounding
//	          └── Plain ───────────── plain ┘
//
// Backward, PlainBackward and GradientBounds are the same for the backward pass; Saved is what a
// forward pass leaves for it. A sample of rows and keys (SampleRows, SampleKeys) checks a problem
// of any size at the cost of the sample.
package ref

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/attention"
)

// A Row names one query row of a problem.
type Row struct{ Batch, Head, Row int }

// A Key names one key of a problem; Head is its key head.
type Key struct{ Batch, Head, Key int }

// AllRows returns every row of p, one batch and head after the other. With Varlen, in has the lengths
// of the sequences.
func AllRows[T Float](in Inputs[T], p attention.Problem) []Row {
	rows := make([]Row, in.NumRows(p))
	for n := range rows {
		rows[n] = in.Row(p, n)
	}
	return rows
}

// SampleRows returns n rows of p, or all of them if p has no more than n. The first and the last row
// of the problem are always among them; the others are random, spread evenly over the rows of all
// batches and heads. The same problem and n give the same rows. n must be positive.
func SampleRows[T Float](in Inputs[T], p attention.Problem, n int) []Row {
	var rows []Row
	for _, at := range sample(in.NumRows(p), n, 1) {
		rows = append(rows, in.Row(p, at))
	}
	return rows
}

// sample returns n numbers below total in order, or all of them.
func sample(total, n int, seed uint64) []int {
	n = min(n, total)
	rng := rand.New(rand.NewPCG(seed, 1))
	list := make([]int, n)
	for x := range list {
		from, to := x*total/n, (x+1)*total/n
		list[x] = from + rng.IntN(to-from)
	}
	if n > 0 {
		list[0] = 0
	}
	if n > 1 {
		list[n-1] = total - 1
	}
	return list
}

// SampleKeys returns n keys of p, or all of them if p has no more than n, in order, as SampleRows does
// with rows.
func SampleKeys[T Float](in Inputs[T], p attention.Problem, n int) []Key {
	l, total := in.places(p), 0
	for b := range p.Batch {
		total += p.NumKVHeads * l.mask(b).SeqKV
	}
	var keys []Key
	batch, before := 0, 0 // a sequence, and the keys of the sequences before it
	for _, at := range sample(total, n, 2) {
		seqKV := l.mask(batch).SeqKV
		for at >= before+p.NumKVHeads*seqKV {
			before += p.NumKVHeads * seqKV
			batch++
			seqKV = l.mask(batch).SeqKV
		}
		keys = append(keys, Key{batch, (at - before) / seqKV, (at - before) % seqKV})
	}
	return keys
}
