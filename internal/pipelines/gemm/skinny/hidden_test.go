package skinny_test

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/vk"
)

// matrixConfig is a configuration of a few small matrices.
func matrixConfig(subgroupsM, subgroupsN, tilesM, tilesN int, shape vk.CoopMatShape) *engine.Config {
	return &engine.Config{Impl: engine.CoopMat, SubgroupsM: subgroupsM, SubgroupsN: subgroupsN, TilesM: tilesM, TilesN: tilesN, BlockK: int(shape.N), GroupM: 2}
}

// A hiddenCase is a product whose silu kernels keep on the chip, and multiply by w.
type hiddenCase struct {
	p       engine.Problem
	second  engine.Problem // silu of it by w
	in      ref.Inputs
	w       []float64
	tensors []guard.Tensor // a, b and w
	random  func(n int) []float64
}

// newHiddenCase draws operands in a format; w has some columns. Both products are about 1.
func newHiddenCase(p engine.Problem, columns int) hiddenCase {
	rng := rand.New(rand.NewPCG(1, uint64(p.N)))
	scaled := func(n, sum int) []float64 { return guard.Random(rng, p.DType, n, 1/math.Sqrt(float64(sum))) }
	batch := p.Batches()
	h := hiddenCase{
		p:      p,
		second: engine.Problem{Batch: p.Batch, M: p.M, N: columns, K: p.N, DType: p.DType, Out: p.Out},
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
func (h *hiddenCase) outputs(multiply func(ref.Inputs, engine.Problem) ref.Outputs) ref.Outputs {
	return multiply(ref.Inputs{A: multiply(h.in, h.p).C, B: h.w}, h.second)
}
