package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
)

// Roomy bounds the results of problems in float16.
const Roomy = 30000

// Lower divides numbers by a power of two if the results that are most in proportion to them are
// more than Roomy.
func Lower(x []float64, t dtype.DType, most float64) bool {
	if !(most > Roomy) {
		return false
	}
	factor := math.Ldexp(1, -int(math.Ceil(math.Log2(most/Roomy))))
	for i, v := range x {
		x[i] = float64(t.Round(float32(v * factor)))
	}
	return true
}

// SampleRows returns some rows in order, the first and the last among them; nil: all.
func SampleRows(rng *rand.Rand, rows, n int) []int {
	if n <= 0 || n >= rows {
		return nil
	}
	taken := map[int]bool{0: true, rows - 1: true}
	for len(taken) < max(n, 2) {
		taken[rng.IntN(rows)] = true
	}
	var list []int
	for row := range rows {
		if taken[row] {
			list = append(list, row)
		}
	}
	return list
}

// Elements returns the indices of the elements of some rows.
func Elements(rows []int, cols int) []int {
	list := make([]int, 0, len(rows)*cols)
	for _, r := range rows {
		for c := range cols {
			list = append(list, r*cols+c)
		}
	}
	return list
}

// Turn returns matrices (rows, cols) transposed.
func Turn(x []float64, rows, cols int) []float64 {
	y := make([]float64, len(x))
	for m := 0; m < len(x); m += rows * cols {
		for r := range rows {
			for c := range cols {
				y[m+c*rows+r] = x[m+r*cols+c]
			}
		}
	}
	return y
}

// times returns the numbers by a factor.
func times(x []float64, by float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = by * v
	}
	return y
}
