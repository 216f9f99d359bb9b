package kernels

import (
	"math"

	"github.com/flashvk/flashvk/internal/bench"
)

// costs are methods of problems with two passes.
type costs interface {
	FLOPs() float64
	Bytes() float64
	BackwardFLOPs() float64
	BackwardBytes() float64
}

// cost returns the operations and bytes of a pass of a problem.
func cost(p costs, pass bench.Pass) (flops, bytes float64) {
	if pass == bench.Backward {
		return p.BackwardFLOPs(), p.BackwardBytes()
	}
	return p.FLOPs(), p.Bytes()
}

// perRoot draws elements of a matrix with n rows so that a product by it is about 1.
func perRoot(n int) func(float32) float32 {
	scale := float32(1 / math.Sqrt(float64(n)))
	return func(x float32) float32 { return x * scale }
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
