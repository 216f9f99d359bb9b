package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/diff/fd"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

// small is a model with two of everything, and no two sizes alike.
var small, smallShape = tnp.Config{Layers: 2, Heads: 2, HeadDim: 8, DModel: 24, DFF: 5, Components: 3, InputDim: 4},
	tnp.Shape{Batch: 2, Context: 3, Targets: 4}

// random returns a batch and random weights: with the weights of Init, norms would be 1.
func random(c tnp.Config, s tnp.Shape) (map[string][]float64, Inputs) {
	rng := rand.New(rand.NewPCG(1, 2))
	normal := func(n int, scale float64) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = scale * rng.NormFloat64()
		}
		return x
	}
	w := map[string][]float64{}
	for _, p := range c.Params(dtype.Float32) {
		w[p.Name] = normal(p.Size(), 0.5)
	}
	return w, Inputs{normal(s.Tokens()*c.InputDim, 1), normal(s.Batch*s.Targets, 1)}
}

// TestGradients compares every gradient with finite differences of the loss.
func TestGradients(t *testing.T) {
	w, in := random(small, smallShape)
	got := Compute(w, in, small, smallShape)
	require.Len(t, got.Grads, len(small.Params(dtype.Float32)))
	for _, p := range small.Params(dtype.Float32) {
		x := w[p.Name]
		require.Len(t, got.Grads[p.Name], len(x), p.Name)
		largest := 0.0
		for i := range x {
			before := x[i]
			want := fd.Derivative(func(v float64) float64 {
				x[i] = v
				return Forward(w, in, small, smallShape).Loss
			}, before, &fd.Settings{Formula: fd.Central, Step: 1e-5})
			x[i] = before
			largest = max(largest, math.Abs(want))
			require.InDelta(t, want, got.Grads[p.Name][i], 1e-8, "%s[%d]", p.Name, i)
		}
		require.Greater(t, largest, 1e-3, "%s: the loss does not depend on it", p.Name)
	}
}

// TestVisible: context sees context, targets see context, no target sees another or its own y.
func TestVisible(t *testing.T) {
	w, in := random(small, smallShape)
	before := Forward(w, in, small, smallShape)
	length := smallShape.Context + smallShape.Targets
	for row := range length { // of the second task
		moved := Inputs{append([]float64(nil), in.X...), in.Y}
		moved.X[(length+row)*small.InputDim] += 0.5
		after := Forward(w, moved, small, smallShape)
		for i := range after.LogP {
			changes := i/smallShape.Targets == 1 && (row < smallShape.Context || row-smallShape.Context == i%smallShape.Targets)
			require.Equal(t, changes, before.LogP[i] != after.LogP[i], "row %d, target %d", row, i)
		}
	}
}
