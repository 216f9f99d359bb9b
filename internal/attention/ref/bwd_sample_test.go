package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
)

// TestGradients: with each feature and in each format the plain program is near Backward, and a
// sample of all rows and keys, from exact O and LSE, is what Backward computes: in float32 it is
// what PlainBackward does, but for a rounding or two.
func TestGradients(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: nothing here is concurrent")
	}
	for name, change := range bwdProblems {
		for _, dt := range dtype.All() {
			p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 70, SeqKV: 27, HeadDim: 16, DType: dt}
			change(&p)
			if name == "bias-own-type" {
				p.Bias.DType = dt
			}
			d := newData(p)
			bound, plain, scope := d.bounds(t)
			few := 30.0 // roundings of the largest
			if dt == dtype.Float32 {
				few = 100 // scores of ALiBi are 40, and so are the roundings of S - LSE
			}
			for _, x := range gradients(plain, d.g, bound) {
				require.LessOrEqual(t, guard.MaxDiff(x.got, x.want).Off, few*dt.Eps()*max(largest(x.want), 0.1), "%s %v %s", name, dt, x.name)
			}
			d.forward(t)
			rows, keys := AllRows(d.in, p), SampleKeys(d.in, p, 1<<30)
			s, of, err := SampleBackward(d.o, d.lse, d.up, d.in, p, rows, keys)
			require.NoError(t, err)
			require.InDeltaSlice(t, d.g.DQ, s.DQ, 1e-12, name)
			require.InDeltaSlice(t, d.g.DK, s.DK, 1e-12, name)
			require.InDeltaSlice(t, d.g.DV, s.DV, 1e-12, name)
			_, sums := samplePairs(d.o, d.lse, &d.up, &d.in, p, func(x float64) float64 { return x }, rows, keys)
			require.InEpsilon(t, scope.KeyWeight, max(sums.weight, 1e-300), 1e-9, name)
			require.InEpsilon(t, scope.Term, sums.term, 1e-9, name)
			require.InEpsilon(t, scope.KeyTerm, math.Sqrt(sums.square), 1e-9, name)
			require.InEpsilon(t, scope.DS, sums.ds, 1e-9, name)
			for i, x := range gradients(plain, s, of)[:3] {
				require.LessOrEqual(t, guard.MaxDiff(x.got, x.want).Off, x.bound, "%s %v %s", name, dt, x.name)
				// O and LSE are exact here, which makes plain a little better.
				require.InEpsilon(t, []float64{bound.DQ, bound.DK, bound.DV}[i], x.bound, 0.6, "%s %v %s", name, dt, x.name)
			}
		}
	}
}

// TestSampleBackwardSome: single rows and keys are those of the whole, packed, too.
func TestSampleBackwardSome(t *testing.T) {
	d := packed()
	p := d.p
	o, lse, err := Saved(d.in, p)
	require.NoError(t, err)
	require.NoError(t, Backward(d.g, d.up, d.in, p))
	rows, keys := SampleRows(d.in, p, 10), SampleKeys(d.in, p, 10)
	require.Equal(t, []Key{{0, 0, 0}, {3, 1, 11}}, []Key{keys[0], keys[9]})
	s, bound, err := SampleBackward(o, lse, d.up, d.in, p, rows, keys)
	require.NoError(t, err)
	for x, r := range rows {
		at, _ := d.in.At(p, r)
		require.InDeltaSlice(t, d.g.DQ[at*24:][:24], s.DQ[x*24:][:24], bound.DQ)
	}
	for x, k := range keys {
		at := d.in.KeyAt(p, k)
		require.InDeltaSlice(t, d.g.DK[at*24:][:24], s.DK[x*24:][:24], bound.DK)
		require.InDeltaSlice(t, d.g.DV[at*p.ValueHeadDim():][:p.ValueHeadDim()], s.DV[x*p.ValueHeadDim():][:p.ValueHeadDim()], bound.DV)
	}
}
