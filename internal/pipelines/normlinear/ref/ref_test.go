package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/pipelines/normlinear"
)

// TestForward has numbers that are computed by hand: the root of the mean of 3² and 4², plus 0.5, is √13.
func TestForward(t *testing.T) {
	p := normlinear.Problem{Rows: 1, In: 2, Out: 2, Bias: true, Eps: 0.5}
	in := Inputs{X: []float64{3, 4}, NormW: []float64{1, 2}, W: []float64{1, 1, -1, 0}, Bias: []float64{10, 20}}
	out, root := Forward(in, p, false), math.Sqrt(13)
	require.InDeltaSlice(t, []float64{10 + 11/root, 20 - 3/root}, out.Y, 1e-14)
	for _, b := range out.Bounds {
		require.True(t, b > 0 && b < 1e-5, b)
	}
	p.GLU, p.Out, p.Activation, in.Bias = true, 1, glu.SiLU, []float64{0, 0}
	gate := 11 / root
	require.InDelta(t, gate/(1+math.Exp(-gate))*-3/root, Forward(in, p, false).Y[0], 1e-14)
}

// TestRounded has one element, whose product with the norm's weight is rounded to float16, and below its normal numbers.
func TestRounded(t *testing.T) {
	for _, x := range []float64{1, 0x1p-20} {
		p := normlinear.Problem{Rows: 1, In: 1, Out: 1, DType: dtype.Float16, OutDType: dtype.Some(dtype.Float32)}
		in := Inputs{X: []float64{x}, NormW: []float64{1}, W: []float64{1}}
		require.InDelta(t, spread*max(0x1p-11, 0x1p-25/x), Forward(in, p, true).Bounds[0], 1e-5)
		require.Less(t, Forward(in, p, false).Bounds[0], 1e-5)
	}
}
