package bench

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/parallel"
)

// normalChunk numbers share one random generator. The numbers of a seed depend on it.
const normalChunk = 1 << 16

// Normal returns n numbers of the standard normal distribution, rounded to t. They depend on the
// seed and on t only, not on the number of processors. Real inputs look like this. Zeros or
// repeated values would let a GPU run at clocks and powers that it never reaches on real data.
func Normal(t dtype.DType, n int, seed uint64) []float32 {
	x := make([]float32, n)
	chunks := (n + normalChunk - 1) / normalChunk
	parallel.For(chunks, func(i int) {
		rng := rand.New(rand.NewPCG(seed, uint64(i)))
		part := x[i*normalChunk : min((i+1)*normalChunk, n)]
		for j := range part {
			part[j] = t.Round(float32(rng.NormFloat64()))
		}
	})
	return x
}
