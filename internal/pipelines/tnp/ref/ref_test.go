package ref

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/tnp"
)

// TestVisible: context sees context, targets see context, no target sees another or its own y.
func TestVisible(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	normal := func(n int, scale float64) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = scale * rng.NormFloat64()
		}
		return x
	}
	m := Model{
		Config:  tnp.Config{Layers: 2, Heads: 2, HeadDim: 8, DModel: 24, DFF: 5, Components: 3, InputDim: 4},
		Shape:   tnp.Shape{Batch: 2, Context: 3, Targets: 4},
		Weights: map[string][]float64{},
	}
	for _, p := range m.Params(dtype.Float32) {
		m.Weights[p.Name] = normal(p.Size(), 0.5)
	}
	m.Inputs = Inputs{normal(m.Tokens()*m.InputDim, 1), normal(m.Batch*m.Targets, 1)}
	before, length := m.Forward(), m.Context+m.Targets
	for row := range length { // of the second task
		moved := m
		moved.X = slices.Clone(m.X)
		moved.X[(length+row)*m.InputDim] += 0.5
		after := moved.Forward()
		for i := range after.LogP {
			changes := i/m.Targets == 1 && (row < m.Context || row-m.Context == i%m.Targets)
			require.Equal(t, changes, before.LogP[i] != after.LogP[i], "row %d, target %d", row, i)
		}
	}
}
