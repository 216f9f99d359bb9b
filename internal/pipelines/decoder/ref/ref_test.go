package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/decoder"
)

// TestForward has numbers that are computed by hand. The query is the new key, of length √5, whatever the angle; the key before
// it is 0.
func TestForward(t *testing.T) {
	p := decoder.Problem{Width: 2, Hidden: 1, Heads: 1, KVHeads: 1, HeadDim: 2, Keys: 3, DType: dtype.Float16}
	identity := []float64{1, 0, 0, 1}
	in := Inputs{
		X: []float64{1, -1}, SeqLens: []float64{1}, NormA: []float64{1, 2}, NormB: []float64{1, 1}, Out: identity, GateUp: identity, Down: []float64{1, 0},
		Cos: []float64{1, 0.6, 1}, Sin: []float64{0, 0.8, 0}, K: make([]float64, 6), V: []float64{7, 0, 9, 9, 9, 9},
		QKV: []float64{1, 0, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1},
	}
	out := Forward(in, p, 1)
	round := func(x float64) float64 { return float64(dtype.Float16.Round(float32(x))) }
	key := []float64{round(1*0.6 + 2*0.8), round(-2*0.6 + 1*0.8)}
	require.Equal(t, []float64{0, 0, key[0], key[1], 0, 0}, out.K)
	require.Equal(t, []float64{7, 0, 1, -2, 9, 9}, out.V)
	e := math.Exp((2.2*key[0] - 0.4*key[1]) / math.Sqrt2)
	x := []float64{1 + (7+e)/(1+e), -1 - 2*e/(1+e)}
	rms := math.Sqrt((x[0]*x[0] + x[1]*x[1]) / 2)
	g, u := x[0]/rms, x[1]/rms
	require.InDeltaSlice(t, []float64{x[0] + round(g/(1+math.Exp(-g))*u), x[1]}, out.Y, 1e-12)
	for i, b := range out.YBounds {
		require.True(t, b > 0 && b < 4e-3, b)
		require.Zero(t, out.VBounds[i])
	}
	// The second of two layers has the x of the first.
	two := in
	for _, s := range []*[]float64{&two.NormA, &two.NormB, &two.Out, &two.GateUp, &two.Down, &two.K, &two.V, &two.QKV} {
		*s = append(append([]float64(nil), *s...), *s...)
	}
	first := in
	first.X = out.Y
	require.InDeltaSlice(t, Forward(first, p, 1).Y, Forward(two, p, 2).Y, 1e-12)
	in.SeqLens = []float64{3}
	full := Forward(in, p, 1)
	require.True(t, math.IsNaN(full.Y[0]) && math.IsNaN(full.Y[1]))
	require.Equal(t, in.V, full.V)
}
