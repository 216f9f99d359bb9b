package ref

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/diff/fd"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
)

// loss is the loss whose gradients are the upstream gradients. Rows whose LSE is -Inf have
// no part in the loss.
func (d *data) loss(t testing.TB) float64 {
	require.NoError(t, Forward(d.o, d.lse, d.in, d.p, nil))
	sum := 0.0
	for i, x := range d.o {
		sum += x * d.up.DO[i]
	}
	for i, x := range d.lse {
		if !math.IsInf(x, -1) && d.up.DLSE != nil {
			sum += x * d.up.DLSE[i]
		}
	}
	return sum
}

// checkFinite compares the gradients of d with central differences of the loss,
// for every element of every input that is finite.
func (d *data) checkFinite(t testing.TB) {
	g, _, err := Backward(d.up, d.in, d.p)
	require.NoError(t, err)
	for _, x := range []struct {
		name      string
		got, vary []float64
	}{{"dq", g.DQ, d.in.Q}, {"dk", g.DK, d.in.K}, {"dv", g.DV, d.in.V}, {"dbias", g.DBias, d.in.Bias}, {"dsinks", g.DSinks, d.in.Sinks}} {
		var finite []int
		var at []float64
		for i, y := range x.vary {
			if math.IsInf(y, -1) {
				require.Zero(t, x.got[i], "%s[%d] of -Inf", x.name, i)
				continue
			}
			finite, at = append(finite, i), append(at, y)
		}
		if len(at) == 0 {
			continue
		}
		want := fd.Gradient(nil, func(y []float64) float64 {
			for n, i := range finite {
				x.vary[i] = y[n]
			}
			return d.loss(t)
		}, at, &fd.Settings{Formula: fd.Central})
		for n, i := range finite {
			x.vary[i] = at[n]
			require.InDelta(t, want[n], x.got[i], 2e-7*(1+math.Abs(want[n])), "%s[%d] of %v", x.name, i, d.p)
		}
	}
}

// tiny is small enough for finite differences, with a group of heads, two
// batches and more keys than rows.
var tiny = attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float32}

// TestFiniteDifferences: each feature alone, then pairs, then all of them.
func TestFiniteDifferences(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: nothing here is concurrent")
	}
	for name, change := range bwdProblems {
		t.Run(name, func(t *testing.T) {
			p := tiny
			change(&p)
			newData(p).checkFinite(t)
		})
	}
	for axes := range 8 {
		p := tiny
		p.Bias = attention.Bias{On: true, Batch: axes&1 != 0, Heads: axes&2 != 0, Rows: axes&4 != 0}
		t.Run("bias-"+p.Bias.String(), func(t *testing.T) { newData(p).checkFinite(t) })
	}
	t.Run("no-dlse", func(t *testing.T) {
		d := newData(tiny)
		d.up.DLSE = nil
		d.checkFinite(t)
	})
	t.Run("varlen", func(t *testing.T) {
		p := tiny
		p.Batch, p.Causal, p.Sinks, p.Bias = 5, true, true, attention.Bias{On: true, Batch: true, Rows: true}
		p.Varlen = attention.Varlen{On: true, TotalQ: 8, TotalKV: 11}
		d := newData(p)
		// Sequences of 3x5, 0x2, 1x0, 3x1 and 0x0, then a row and three keys that are in none.
		d.in.CuSeqlensQ, d.in.CuSeqlensKV = []int32{0, 3, 3, 4, 7, 7}, []int32{0, 5, 7, 7, 8, 8}
		d.checkFinite(t)
	})
}

// TestGradients: with each feature and in each format the plain program is near Backward, and a sample
// of all rows and keys, from exact O and LSE, is what Backward computes, with its scope.
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
			bound, want, plain, _ := d.bounds(t)
			few := 30.0 // roundings of the largest
			if dt == dtype.Float32 {
				few = 100 // scores of ALiBi are 40, and so are the roundings of S - LSE
			}
			for _, x := range gradients(plain, want, bound) {
				require.LessOrEqual(t, guard.Off(x.got, x.want), few*dt.Eps()*max(largest(x.want), 0.1), "%s %v %s", name, dt, x.name)
			}
			d.forward(t)
			s, of, err := SampleBackward(d.o, d.lse, d.up, d.in, p, AllRows(d.in, p), SampleKeys(d.in, p, 1<<30))
			require.NoError(t, err)
			require.Equal(t, []any{want.DQ, want.DK, want.DV}, []any{s.DQ, s.DK, s.DV}, name)
			for i, x := range gradients(plain, s, of)[:3] {
				// O and LSE are exact here, which makes plain a little better.
				require.LessOrEqual(t, guard.Off(x.got, x.want), x.bound, "%s %v %s", name, dt, x.name)
				require.InEpsilon(t, []float64{bound.DQ, bound.DK, bound.DV}[i], x.bound, 0.6, "%s %v %s", name, dt, x.name)
			}
		}
	}
}

// TestSampleBackward: single rows and keys get the gradients of the whole problem, packed, too.
func TestSampleBackward(t *testing.T) {
	d := packed().forward(t)
	p := d.p
	want, _, err := Backward(d.up, d.in, p)
	require.NoError(t, err)
	rows, keys := SampleRows(d.in, p, 10), SampleKeys(d.in, p, 10)
	require.Equal(t, []Key{{0, 0, 0}, {3, 1, 11}}, []Key{keys[0], keys[9]})
	s, _, err := SampleBackward(d.o, d.lse, d.up, d.in, p, rows, keys)
	require.NoError(t, err)
	for x, r := range rows {
		at, _ := d.in.At(p, r)
		require.Equal(t, want.DQ[at*24:][:24], s.DQ[x*24:][:24])
	}
	for x, k := range keys {
		at := d.in.KeyAt(p, k)
		require.Equal(t, want.DK[at*24:][:24], s.DK[x*24:][:24])
		require.Equal(t, want.DV[at*16:][:16], s.DV[x*16:][:16])
	}
}

// backwards are all that this package has.
var backwards = map[string]func(up Upstream[float64], in Inputs[float64], p attention.Problem) (Gradients, error){
	"backward": func(up Upstream[float64], in Inputs[float64], p attention.Problem) (Gradients, error) {
		g, _, err := Backward(up, in, p)
		return g, err
	},
	"plain": func(up Upstream[float64], in Inputs[float64], p attention.Problem) (Gradients, error) {
		o, lse, err := Saved(in, p)
		if err != nil {
			return Gradients{}, err
		}
		return PlainBackward(o, lse, up, in, p)
	},
}

func ExampleBackward() {
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 2, HeadDim: 8}
	in := Inputs[float32]{Q: make([]float32, 8), K: make([]float32, 16), V: make([]float32, 16)}
	g, _, err := Backward(Upstream[float32]{DO: []float32{1, 2, 3, 4, 5, 6, 7, 8}}, in, p)
	fmt.Println(g.DV[:3], err) // each of two equal keys has half the weight
	// Output: [0.5 1 1.5] <nil>
}
