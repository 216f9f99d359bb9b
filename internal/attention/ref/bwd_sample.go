package ref

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/guard"
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

// A BackwardSample is what the gradients of some rows and keys of a backward pass
// should be, by the formulas of Backward, from O and LSE as a forward pass left
// them. It is for problems whose gradients would all take too long.
type BackwardSample[T Float] struct {
	p     attention.Problem
	in    Inputs[T]
	rows  []Row
	keys  []Key
	Want  Gradients // DQ (len(rows), head_dim), DK (len(keys), head_dim), DV (len(keys), value_dim)
	Bound GradientBound
}

// SampleBackward computes a sample. O, LSE and the rest are whole tensors,
// contiguous in logical order. Of rows it has dQ, of keys dK and dV; at least one
// of each is needed.
//
// A row costs 2*(2*head_dim + value_dim) operations for each key that it sees, a key
// 4*(head_dim + value_dim) for each row of each head that sees it, all in float64
// and once more in float32, for the bounds.
func SampleBackward[T Float](o, lse []T, up Upstream[T], in Inputs[T], p attention.Problem, rows []Row, keys []Key) (*BackwardSample[T], error) {
	if err := in.check(p); err != nil {
		return nil, err
	}
	err := checkSlices(false, []slice{{"do", true, len(up.DO), p.OShape()}, {"dlse", up.DLSE != nil, len(up.DLSE), p.LSEShape()}})
	if err := cmp.Or(checkSaved(len(o), len(lse), p), err); err != nil {
		return nil, err
	}
	if len(rows) == 0 || len(keys) == 0 {
		return nil, fmt.Errorf("attention: a sample of %d rows and %d keys: it needs one of each", len(rows), len(keys))
	}
	s := &BackwardSample[T]{p: p, in: in, rows: rows, keys: keys}
	want, sums := samplePairs(o, lse, &up, &in, p, func(x float64) float64 { return x }, rows, keys)
	plain, _ := samplePairs(o, lse, &up, &in, p, p.DType.Round, rows, keys)
	s.Want = want
	scope := newGradientScope(up, in, lse, p)
	scope.Term, scope.DS, scope.KeyWeight = sums.term, sums.ds, sums.weight
	s.Bound = GradientBounds(want, plain, scope, p)
	return s, nil
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

// Size returns how many rows and keys are in the sample.
func (s *BackwardSample[T]) Size() (rows, keys int) { return len(s.rows), len(s.keys) }

// A GradientCheck says how far a gradient is from the reference, on a sample.
type GradientCheck struct {
	Name  string     // dq, dk or dv
	Diff  guard.Diff // the worst element
	At    string     // where: batch, head, row or key, and column
	Mean  float64    // mean|Δ|
	Bound float64
	Got   []float64 // what was compared
	Want  []float64
}

// Err returns nil if the gradient is within its bound, and otherwise an error that
// names the worst element.
func (c GradientCheck) Err() error {
	if c.Diff.Off <= c.Bound {
		return nil
	}
	return fmt.Errorf("%s[%s] is %.6g, want %.6g: off by %.3g, limit %.3g", c.Name, c.At, c.Diff.Got, c.Diff.Want, c.Diff.Off, c.Bound)
}

// Check compares a kernel's dQ, dK and dV, whole tensors, with the sample.
func (s *BackwardSample[T]) Check(dq, dk, dv []T) [3]GradientCheck {
	p, l := s.p, s.in.places(s.p)
	row := func(x int) (at int, name string) {
		r := s.rows[x]
		return l.query(r), fmt.Sprintf("%d,%d,%d", r.Batch, r.Head, r.Row)
	}
	key := func(x int) (at int, name string) {
		k := s.keys[x]
		first, step := l.keys(k.Batch, k.Head)
		return first + k.Key*step, fmt.Sprintf("%d,%d,%d", k.Batch, k.Head, k.Key)
	}
	return [3]GradientCheck{
		checkSample("dq", dq, s.Want.DQ, p.HeadDim, s.Bound.DQ, row),
		checkSample("dk", dk, s.Want.DK, p.HeadDim, s.Bound.DK, key),
		checkSample("dv", dv, s.Want.DV, p.ValueHeadDim(), s.Bound.DV, key),
	}
}

// checkSample compares rows of d elements. Place returns where they are in the whole tensor.
func checkSample[T Float](name string, whole []T, want []float64, d int, bound float64, place func(x int) (at int, name string)) GradientCheck {
	got, sum := make([]float64, len(want)), 0.0
	for x := range len(want) / d {
		at, _ := place(x)
		for e, y := range whole[at*d:][:d] {
			got[x*d+e] = float64(y)
			sum += math.Abs(got[x*d+e] - want[x*d+e])
		}
	}
	diff := guard.MaxDiff(got, want)
	_, at := place(diff.Index / d)
	return GradientCheck{Name: name, Diff: diff, At: fmt.Sprintf("%s,%d", at, diff.Index%d), Mean: sum / float64(len(want)), Bound: bound, Got: got, Want: want}
}
