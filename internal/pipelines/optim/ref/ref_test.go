package ref

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/optim"
)

// TestFirstStep: after the first step from zero moments, every element has moved by lr
// against the sign of its gradient, but for eps, whatever the gradient's size; and the
// decay took lr*weight_decay of it.
func TestFirstStep(t *testing.T) {
	h := optim.Problem{LR: 0.01, Beta1: 0.9, Beta2: 0.99, Eps: 1e-12, WeightDecay: 0.1}
	p := Param{Param: []float64{1, 1, 1, 2}, M: make([]float64, 4), V: make([]float64, 4)}
	got := Step(h, p, []float64{1e-3, -1e3, 0, 5}, 1, 1)
	require.InDeltaSlice(t, []float64{0.999 - 0.01, 0.999 + 0.01, 0.999, 1.998 - 0.01}, got.Param, 1e-9)
	p.NoDecay = true
	require.InDelta(t, 0.99, Step(h, p, []float64{1e-3, 1, 1, 1}, 1, 1).Param[0], 1e-9)
}

// TestConstantGradient: with a gradient that never changes, both corrected moments
// are it and its square after any number of steps.
func TestConstantGradient(t *testing.T) {
	h := optim.Problem{LR: 0.1, Beta1: 0.8, Beta2: 0.95, Eps: 1e-9}
	p := Param{Param: []float64{0}, M: []float64{0}, V: []float64{0}}
	for step := 1; step <= 30; step++ {
		p = Step(h, p, []float64{-3}, 0.5, step)
		require.InDelta(t, -1.5, p.M[0]/(1-math.Pow(0.8, float64(step))), 1e-12)
		require.InDelta(t, 2.25, p.V[0]/(1-math.Pow(0.95, float64(step))), 1e-12)
		require.InDelta(t, 0.1*float64(step), p.Param[0], 1e-7)
	}
}

func TestClipping(t *testing.T) {
	require.Equal(t, 5.0, Norm([]float64{3}, []float64{0, 4}))
	require.Equal(t, 0.2, Scale(optim.Problem{MaxNorm: 1}, 5))
	for _, h := range []optim.Problem{{}, {MaxNorm: 6}, {MaxNorm: math.Inf(1)}} {
		require.Equal(t, 1.0, Scale(h, 5))
	}
}

// TestCopyOverflows: a parameter beyond the copy's format is infinite there, and says nothing about
// the error of the others.
func TestCopyOverflows(t *testing.T) {
	p := Param{Param: []float64{1, -137204.7}, M: make([]float64, 2), V: make([]float64, 2)}
	require.Equal(t, []float64{1, math.Inf(-1)}, Copy(p.Param, dtype.Float16))
	require.Equal(t, p.Param, Copy(p.Param, dtype.BFloat16))
	b := NewBounds(optim.Default(), p, make([]float64, 2), 1, 1, p, p, dtype.Float16)
	require.Less(t, b.Copy, 1.0)
}
