package ref

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/attention"
)

// A Key names one key of a problem; Head is its key head.
type Key struct{ Batch, Head, Key int }

// KeyAt returns where a key is in whole tensors K and V, in rows.
func (in Inputs[T]) KeyAt(p attention.Problem, k Key) int {
	first, step := in.places(p).keys(k.Batch, k.Head)
	return first + k.Key*step
}

// SampleKeys returns n keys of p, or all of them if p has no more than n, in
// order, as SampleRows does with rows.
func SampleKeys[T Float](in Inputs[T], p attention.Problem, n int) []Key {
	l := in.places(p)
	var heads []Key // the key after the last of each head, and how many are before it
	var before []int
	total := 0
	for b := range p.Batch {
		for h := range p.NumKVHeads {
			heads, before = append(heads, Key{b, h, l.mask(b).SeqKV}), append(before, total)
			total += l.mask(b).SeqKV
		}
	}
	n = min(n, total)
	rng := rand.New(rand.NewPCG(2, 1))
	keys := make([]Key, n)
	head := 0
	for x := range keys {
		from, to := x*total/n, (x+1)*total/n
		at := from + rng.IntN(to-from)
		switch x {
		case 0:
			at = 0
		case n - 1:
			at = total - 1
		}
		for at >= before[head]+heads[head].Key {
			head++
		}
		keys[x] = Key{heads[head].Batch, heads[head].Head, at - before[head]}
	}
	return keys
}

// SampleBackward computes the gradients of some rows and keys of a backward pass, by the formulas of
// Backward, and how far a kernel may be from them. It is for problems whose gradients would all take too
// long. O and LSE are as a forward pass left them. All inputs are whole tensors, contiguous in logical
// order. Of rows the result has DQ (len(rows), head_dim), of keys DK (len(keys), head_dim) and DV
// (len(keys), value_dim); at least one of each is needed.
//
// A row costs 2*(2*head_dim + value_dim) operations for each key that it sees, a key
// 4*(head_dim + value_dim) for each row of each head that sees it, all in float64
// and once more in float32, for the bounds.
func SampleBackward[T Float](o, lse []T, up Upstream[T], in Inputs[T], p attention.Problem, rows []Row, keys []Key) (Gradients, GradientBound, error) {
	err := cmp.Or(in.check(p), checkSaved(len(o), len(lse), p),
		checkSlices(false, []slice{{"do", true, len(up.DO), p.OShape()}, {"dlse", up.DLSE != nil, len(up.DLSE), p.LSEShape()}}))
	if err == nil && (len(rows) == 0 || len(keys) == 0) {
		err = fmt.Errorf("attention: a sample of %d rows and %d keys: it needs one of each", len(rows), len(keys))
	}
	if err != nil {
		return Gradients{}, GradientBound{}, err
	}
	want, sums := samplePairs(o, lse, &up, &in, p, func(x float64) float64 { return x }, rows, keys)
	plain, _ := samplePairs(o, lse, &up, &in, p, p.DType.Round, rows, keys)
	scope := newGradientScope(up, in, lse, p)
	scope.Term, scope.KeyTerm, scope.DS, scope.KeyWeight = sums.term, math.Sqrt(sums.square), sums.ds, sums.weight
	return want, GradientBounds(want, plain, scope, p), nil
}

// samplePairs computes a sample in arithmetic F.
func samplePairs[F, T Float](o, lse []T, up *Upstream[T], in *Inputs[T], p attention.Problem, round func(F) F, rows []Row, keys []Key) (Gradients, pairSums) {
	w := pairs[F, T]{p: p, in: in, up: up, o: convert[F](o), lse: convert[F](lse), round: round, rows: map[Row]int{}, keys: map[Key]int{}}
	for x, r := range rows {
		w.rows[r] = x
	}
	for x, k := range keys {
		w.keys[k] = x
	}
	d, dv := p.HeadDim, p.ValueHeadDim()
	w.g = Gradients{DQ: make([]float64, len(rows)*d), DK: make([]float64, len(keys)*d), DV: make([]float64, len(keys)*dv)}
	return w.g, w.compute()
}
