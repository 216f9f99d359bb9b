package kernels

import (
	"math"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
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

// rowsAt returns the elements of some rows of a matrix of n rows; nil if they are all.
func rowsAt(rows []int, n, cols int) []int {
	if len(rows) == n {
		return nil
	}
	return call.Elements(rows, cols)
}

// sample returns the wanted number of n indices, at least 4, the first and the last among them.
func sample(n, wanted int) []int {
	wanted = min(max(wanted, 4), n)
	list := make([]int, 0, wanted)
	for i := range wanted {
		list = append(list, i*(n-1)/max(wanted-1, 1))
	}
	return list
}
