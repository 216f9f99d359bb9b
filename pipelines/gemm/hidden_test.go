package gemm_test

import (
	"iter"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/flashvk/flashvk/chips"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
)

// matrixFormats yields the 16-bit formats of which the device has matrices, and theirs.
func matrixFormats(t *testing.T, d *vk.Device) iter.Seq2[dtype.DType, vk.CoopMatShape] {
	return func(yield func(dtype.DType, vk.CoopMatShape) bool) {
		for _, format := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
			if shape, lack := chips.MatrixShape(d.Caps(), format); lack != "" {
				t.Logf("%v: %s", format, lack)
			} else if !yield(format, shape) {
				return
			}
		}
	}
}

// matrixConfig is a configuration of a few small matrices.
func matrixConfig(subgroupsM, subgroupsN, tilesM, tilesN int, shape vk.CoopMatShape) *gemm.Config {
	return &gemm.Config{Impl: gemm.CoopMat, SubgroupsM: subgroupsM, SubgroupsN: subgroupsN, TilesM: tilesM, TilesN: tilesN, BlockK: int(shape.N), GroupM: 2}
}

// A hiddenCase is a product whose silu kernels keep on the chip, and multiply by w.
type hiddenCase struct {
	p       gemm.Problem
	second  gemm.Problem // silu of it by w
	in      ref.Inputs
	w       []float64
	tensors []guard.Tensor // a, b and w
	random  func(n int) []float64
}

// newHiddenCase draws operands in a format; w has some columns. Both products are about 1.
func newHiddenCase(p gemm.Problem, columns int) hiddenCase {
	rng := rand.New(rand.NewPCG(1, uint64(p.N)))
	scaled := func(n, sum int) []float64 { return guard.Random(rng, p.DType, n, 1/math.Sqrt(float64(sum))) }
	batch := p.Batches()
	h := hiddenCase{
		p:      p,
		second: gemm.Problem{Batch: p.Batch, M: p.M, N: columns, K: p.N, DType: p.DType, Out: p.Out},
		in:     ref.Inputs{A: scaled(batch*p.M*p.K, 1), B: scaled(batch*p.K*p.N, p.K)},
		w:      scaled(batch*p.N*columns, p.N),
		random: func(n int) []float64 { return scaled(n, 1) },
	}
	h.tensors = []guard.Tensor{
		{Name: "a", DType: p.DType, Shape: p.AShape(), Values: h.in.A},
		{Name: "b", DType: p.DType, Shape: p.BShape(), Values: h.in.B},
		{Name: "w", DType: p.DType, Shape: []int{batch, p.N, columns}, Values: h.w},
	}
	return h
}

// outputs returns silu of the product by w.
func (h *hiddenCase) outputs(multiply func(ref.Inputs, gemm.Problem) ref.Outputs) ref.Outputs {
	return multiply(ref.Inputs{A: multiply(h.in, h.p).C, B: h.w}, h.second)
}
