package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/diff/fd"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/glu"
)

var all = []glu.Activation{glu.SiLU, glu.GELU, glu.GELUTanh}

// TestActivations wants values from tables, slopes that are the slopes of the values, and bounds of the
// same formulas, narrow where the values are not.
func TestActivations(t *testing.T) {
	at1 := []float64{1 / (1 + math.Exp(-1)), 0.8413447460685429, 0.8411919906082768}
	for i, a := range all {
		value, _ := Activation(a, 1)
		require.InDelta(t, at1[i], value, 1e-15, a)
		for x := -20.0; x <= 20; x += 0.25 {
			value, slope := Activation(a, x)
			of := func(x float64) float64 { v, _ := Activation(a, x); return v }
			require.InDelta(t, fd.Derivative(of, x, &fd.Settings{Formula: fd.Central}), slope, 1e-8, "%v of %g", a, x)
			v, s := Bounded(a, x)
			require.InDelta(t, value, v.X, 1e-14, "%v of %g", a, x)
			require.InDelta(t, slope, s.X, 1e-14, "%v of %g", a, x)
			require.Less(t, v.Off, 0x1p-16*math.Abs(value)*(1+math.Abs(x))+1e-36, "%v of %g", a, x)
			require.Less(t, s.Off, 2e-6, "%v of %g", a, x)
		}
	}
}

// TestValues has elements that can be computed by hand.
func TestValues(t *testing.T) {
	p := glu.Problem{Rows: 1, Cols: 2, DType: dtype.Float32}
	require.Equal(t, []float64{0, 4 / (1 + math.Exp(-2))}, Forward([]float64{0, 2}, []float64{3, 2}, p).Want)
	dg, du := Backward([]float64{0, 0}, []float64{3, 2}, []float64{4, 5}, p)
	require.Equal(t, []float64{6, 5}, dg.Want)
	require.Equal(t, []float64{0, 0}, du.Want)
}
