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
	p := normlinear.Problem{Rows: 1, In: 2, Out: 2, Bias: true, Residual: true, Eps: 0.5}
	in := Inputs{X: []float64{1, 5}, Residual: []float64{2, -1}, NormW: []float64{1, 2}, W: []float64{1, 1, -1, 0}, Bias: []float64{10, 20}}
	out, root := Forward(in, p), math.Sqrt(13)
	require.Equal(t, []float64{3, 4}, out.Sum)
	require.InDeltaSlice(t, []float64{10 + 11/root, 20 - 3/root}, out.Y, 1e-14)
	for _, b := range out.Bounds {
		require.True(t, b > 0 && b < 1e-5, b)
	}
	p.GLU, p.Out, p.Activation, in.Bias = true, 1, glu.SiLU, []float64{0, 0}
	gate := 11 / root
	require.InDelta(t, gate/(1+math.Exp(-gate))*-3/root, Forward(in, p).Y[0], 1e-14)
}

// TestRounded has a sum that float16 does not hold: it is rounded before it is normalized.
func TestRounded(t *testing.T) {
	p := normlinear.Problem{Rows: 1, In: 2, Out: 1, Residual: true, DType: dtype.Float16, OutDType: dtype.Some(dtype.Float32)}
	out := Forward(Inputs{X: []float64{2048, 1}, Residual: []float64{1, 1}, NormW: []float64{1, 1}, W: []float64{1, 0}}, p)
	require.Equal(t, []float64{2048, 2}, out.Sum)
	require.InDelta(t, 2048/math.Sqrt((2048*2048+4)/2.0), out.Y[0], 1e-12)
}
