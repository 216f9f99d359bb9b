package kernels

import (
	"github.com/flashvk/flashvk/internal/bench"
)

// costs are the operations and the least traffic of a problem. One with a backward pass also has
// BackwardFLOPs and BackwardBytes.
type costs interface {
	FLOPs() float64
	Bytes() float64
}

// cost returns the operations and bytes of a pass of a problem.
func cost(p costs, pass bench.Pass) (flops, bytes float64) {
	if pass == bench.Backward {
		back := p.(interface {
			BackwardFLOPs() float64
			BackwardBytes() float64
		})
		return back.BackwardFLOPs(), back.BackwardBytes()
	}
	return p.FLOPs(), p.Bytes()
}

// wide returns x in float64, nil for nil.
func wide(x []float32) []float64 {
	if x == nil {
		return nil
	}
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}
