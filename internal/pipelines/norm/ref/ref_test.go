package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/norm"
)

func normal(rng *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = rng.NormFloat64()
	}
	return x
}

// TestForwardValues has rows that can be computed by hand.
func TestForwardValues(t *testing.T) {
	p := norm.Problem{Rows: 2, Cols: 4, Eps: 0, DType: dtype.Float32}
	in := Inputs{X: []float64{1, 2, 3, 4, -2, -2, 2, 2}, W: []float64{1, 1, 2, 1}}
	out := Forward(in, p)
	require.InDeltaSlice(t, []float64{2.5, 0}, out.Mean, 1e-15)
	require.InDeltaSlice(t, []float64{1 / math.Sqrt(1.25), 0.5}, out.Rstd, 1e-15)
	a := 1 / math.Sqrt(1.25)
	require.InDeltaSlice(t, []float64{-1.5 * a, -0.5 * a, a, 1.5 * a, -1, -1, 2, 1}, out.Y, 1e-15)
	p.RMS, p.Eps = true, 2.5
	out = Forward(in, p)
	require.InDeltaSlice(t, []float64{1 / math.Sqrt(7.5+2.5), 1 / math.Sqrt(4+2.5)}, out.Rstd, 1e-15)
	require.InDelta(t, 6/math.Sqrt(10), out.Y[2], 1e-15)
	p.Residual, p.Eps = true, 0
	in.Residual = []float64{0, 0, 0, 0, 4, 4, 0, 0}
	require.Equal(t, []float64{1, 2, 3, 4, 2, 2, 2, 2}, Forward(in, p).Sum)
}

// TestBoundsOfLargeMeans says that bounds of rows whose mean is large against their
// deviation are narrow, for sums of 5000 squares one after the other: they would excuse a
// kernel for a wrong mean if the plain program had one.
func TestBoundsOfLargeMeans(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, base := range []float64{1e4, 1e6, 1e7} {
		for _, steps := range []int{1, 3} { // 1: elements are equal
			p := norm.Problem{Rows: 3, Cols: 5000, Eps: 1e-5}
			in := Inputs{X: make([]float64, 3*5000), W: normal(rng, 5000)}
			for i := range in.X {
				in.X[i] = base * (1 + 0x1p-23*float64(rng.IntN(steps)))
			}
			for _, x := range [][]float64{in.X, in.W} {
				round(x, dtype.Float32)
			}
			up := Upstream{DY: normal(rng, 3*5000)}
			want, g := Forward(in, p), Backward(in.X, in.W, up, p)
			b := Bounds(want, PlainForward(in, p), p)
			gb := BackwardBounds(g, PlainBackward(in.X, in.W, up, p), in.X, in.W, up, p)
			if steps == 1 {
				require.Zero(t, b.Y)
				require.Zero(t, gb.DW)
				continue
			}
			require.Less(t, b.Y, 1e-3)
			require.Less(t, b.Rstd, 1e-3*tolerance.Largest(want.Rstd))
			require.Less(t, gb.DX, 1e-3*tolerance.Largest(g.DX))
			require.Less(t, gb.DW, 1e-3*tolerance.Largest(g.DW))
		}
	}
}
