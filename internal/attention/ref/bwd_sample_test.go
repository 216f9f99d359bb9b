package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
)

// allKeys returns every key of p.
func allKeys(in Inputs[float64], p attention.Problem) []Key { return SampleKeys(in, p, 1<<30) }

// TestSampleBackward: of all rows and keys, from exact O and LSE, a sample is what
// Backward computes, with every feature; in float32 it is what PlainBackward does,
// but for a rounding or two.
func TestSampleBackward(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: nothing here is concurrent")
	}
	for name, change := range bwdProblems {
		for _, dt := range dtype.All() {
			p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 20, SeqKV: 27, HeadDim: 16, DType: dt}
			change(&p)
			d := newBwdData(p)
			require.NoError(t, Backward(d.g, d.up, d.in, p))
			require.NoError(t, Forward(d.o, d.lse, d.in, p))
			rows, keys := AllRows(d.in, p), allKeys(d.in, p)
			s, err := SampleBackward(d.o, d.lse, d.up, d.in, p, rows, keys)
			require.NoError(t, err)
			require.InDeltaSlice(t, d.g.DQ, s.want.DQ, 1e-12, name)
			require.InDeltaSlice(t, d.g.DK, s.want.DK, 1e-12, name)
			require.InDeltaSlice(t, d.g.DV, s.want.DV, 1e-12, name)

			bound, plain, scope := d.bounds(t)
			require.InEpsilon(t, scope.KeyWeight, max(sampleScope(t, d).weight, 1e-300), 1e-9, name)
			require.InEpsilon(t, scope.Term, sampleScope(t, d).term, 1e-9, name)
			for i, c := range s.Check(plain.DQ, plain.DK, plain.DV) {
				require.NoError(t, c.Err(), "%s %v", name, dt)
				// O and LSE are exact here, which makes plain a little better.
				require.InEpsilon(t, []float64{bound.DQ, bound.DK, bound.DV}[i], c.Bound, 0.6, "%s %v %s", name, dt, c.Name)
			}
		}
	}
}

// sampleScope returns the sums over all rows and keys.
func sampleScope(t *testing.T, d *bwdData) sampleSums {
	s := sampled[float64, float64]{o: d.o, lse: d.lse, up: &d.up, in: &d.in, p: d.p, round: func(x float64) float64 { return x }}
	_, sums := s.compute(AllRows(d.in, d.p), allKeys(d.in, d.p))
	return sums
}

// TestSampleBackwardSome: single rows and keys are those of the whole, packed, too,
// and a wrong element is found and named.
func TestSampleBackwardSome(t *testing.T) {
	p := attention.Problem{Batch: 4, NumHeads: 4, NumKVHeads: 2, SeqQ: 9, SeqKV: 12, HeadDim: 24, ValueDim: 16, DType: dtype.Float32, Causal: true}
	p.Varlen = attention.Varlen{On: true, TotalQ: 20, TotalKV: 25}
	d := newBwdData(p)
	d.in.CuSeqlensQ, d.in.CuSeqlensKV = []int32{0, 9, 9, 10, 18}, []int32{0, 5, 8, 9, 21}
	o, lse, err := Saved(d.in, p)
	require.NoError(t, err)
	require.NoError(t, Backward(d.g, d.up, d.in, p))
	rows, keys := SampleRows(d.in, p, 10), SampleKeys(d.in, p, 10)
	require.Equal(t, []Key{{0, 0, 0}, {3, 1, 11}}, []Key{keys[0], keys[9]})
	require.Len(t, allKeys(d.in, p), 21*2)
	s, err := SampleBackward(o, lse, d.up, d.in, p, rows, keys)
	require.NoError(t, err)
	for _, c := range s.Check(d.g.DQ, d.g.DK, d.g.DV) {
		require.NoError(t, c.Err())
	}
	first, step := d.in.places(p).keys(3, 1)
	at := (first + 11*step) * 24
	for _, x := range []float64{7, math.NaN()} {
		good := d.g.DK[at+3]
		d.g.DK[at+3] = x
		c := s.Check(d.g.DQ, d.g.DK, d.g.DV)
		require.NoError(t, c[0].Err())
		require.ErrorContains(t, c[1].Err(), "dk[3,1,11,3] is ")
		require.NoError(t, c[2].Err())
		d.g.DK[at+3] = good
	}
	row, _ := d.in.At(p, rows[9])
	d.g.DQ[row*24+23]++
	require.ErrorContains(t, s.Check(d.g.DQ, d.g.DK, d.g.DV)[0].Err(), "dq[3,3,7,23] is ")
}

// TestSampleKeys: as many as asked for, every head, both ends, in order.
func TestSampleKeys(t *testing.T) {
	p, in := small, Inputs[float64]{}
	keys := SampleKeys(in, p, 40)
	require.Len(t, keys, 40)
	require.Equal(t, []Key{{0, 0, 0}, {1, 1, 149}}, []Key{keys[0], keys[39]})
	heads := map[[2]int]bool{}
	for _, k := range keys {
		heads[[2]int{k.Batch, k.Head}] = true
		require.Less(t, k.Key, 150)
	}
	require.Len(t, heads, 4)
	require.Equal(t, keys, SampleKeys(in, p, 40))
	all := allKeys(in, p)
	require.Len(t, all, 2*2*150)
	require.Equal(t, Key{1, 0, 149}, all[2*150+149])
}

// TestSampleBackwardErrors names what does not fit.
func TestSampleBackwardErrors(t *testing.T) {
	d := newBwdData(tiny)
	rows, keys := AllRows(d.in, d.p), allKeys(d.in, d.p)
	for _, c := range []struct {
		o, lse []float64
		up     Upstream[float64]
		rows   []Row
		want   string
	}{
		{d.o[1:], d.lse, d.up, rows, "attention: o has 191 elements, want 192 of shape [2 4 3 8]"},
		{d.o, nil, d.up, rows, "attention: lse has 0 elements, want 24 of shape [2 4 3]"},
		{d.o, d.lse, Upstream[float64]{}, rows, "attention: do has 0 elements, want 192 of shape [2 4 3 8]"},
		{d.o, d.lse, Upstream[float64]{DO: d.up.DO, DLSE: ones(3)}, rows, "attention: dlse has 3 elements, want 24 of shape [2 4 3]"},
		{d.o, d.lse, d.up, nil, "attention: a sample of 0 rows and 20 keys: it needs one of each"},
	} {
		_, err := SampleBackward(c.o, c.lse, c.up, d.in, d.p, c.rows, keys)
		require.EqualError(t, err, c.want)
	}
}

// TestSampleBackwardHidden: NaN in a key that a mask hides reaches nothing.
func TestSampleBackwardHidden(t *testing.T) {
	p := tiny
	p.KeyMask = true
	d := newBwdData(p)
	o, lse, err := Saved(d.in, p)
	require.NoError(t, err)
	for b := range 2 {
		for h := range 2 {
			for j := range p.SeqKV {
				if !d.in.KeyMask[b*p.SeqKV+j] {
					d.in.K[((b*2+h)*p.SeqKV+j)*8], d.in.V[((b*2+h)*p.SeqKV+j)*8] = math.NaN(), math.NaN()
				}
			}
		}
	}
	s, err := SampleBackward(o, lse, d.up, d.in, p, AllRows(d.in, p), allKeys(d.in, p))
	require.NoError(t, err)
	for _, x := range [][]float64{s.want.DQ, s.want.DK, s.want.DV} {
		for i := range x {
			require.False(t, math.IsNaN(x[i]))
		}
	}
	require.Equal(t, make([]float64, 8), s.want.DK[8:16])
}
