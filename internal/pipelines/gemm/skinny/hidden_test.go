package skinny_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/vk"
)

// A sizedCase is a product, what of its test varies beside it (columns of w, groups of heads), and
// a choice of tiles for matrices of a shape; nil: the table's.
type sizedCase struct {
	p      engine.Problem
	n      int
	config func(shape vk.CoopMatShape) *engine.Config
}

// tiles is a configuration of a few small matrices.
func tiles(subgroupsM, subgroupsN, tilesM, tilesN int) func(shape vk.CoopMatShape) *engine.Config {
	return func(shape vk.CoopMatShape) *engine.Config {
		return &engine.Config{Impl: engine.CoopMat, SubgroupsM: subgroupsM, SubgroupsN: subgroupsN, TilesM: tilesM, TilesN: tilesN, BlockK: int(shape.N), GroupM: 2}
	}
}

// Tiles whose rows leave in several strips, and with subgroups side by side.
var strips, wide = tiles(1, 1, 1, 4), tiles(1, 2, 2, 1)

// fragments is tiles with op(B) in fragments.
func fragments(shape vk.CoopMatShape) *engine.Config {
	c := tiles(2, 1, 1, 2)(shape)
	c.BlockK, c.PackB = 4*int(shape.N), true
	return c
}

// alone is that of a single subgroup: lavapipe's subgroupBarrier waits for all (lib/rows_coopmat.glsl).
func alone(shape vk.CoopMatShape) *engine.Config {
	c := fragments(shape)
	c.SubgroupsM = 1
	return c
}

// runs is tiles of which an invocation has eight neighbours of a row.
func runs(shape vk.CoopMatShape) *engine.Config {
	c := tiles(1, 2, 1, 8)(shape)
	c.PackB = true
	return c
}

// each calls f for the cases, by number, in every format that the device has matrices of.
func each(t *testing.T, d *vk.Device, cases []sizedCase, f func(i int, p engine.Problem, n int, o engine.Options)) {
	for format, shape := range chipstest.MatrixFormats(t, d) {
		for i, c := range cases {
			c.p.DType, c.p.Out = format, format
			o := engine.Options{Impl: engine.CoopMat}
			if c.config != nil {
				o.Config = c.config(shape)
			}
			f(i, c.p, c.n, o)
		}
	}
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

// enlarge makes hidden units of some rows larger than numbers of 16 bits, but those that are kept: the
// largest ones of them add up to such numbers.
func (h *hiddenCase) enlarge() {
	a, b := 0x1p13, 0x1p1
	if h.p.DType == dtype.BFloat16 {
		a, b = 0x1p63, 0x1p63
	} else if !h.p.HasX() {
		b = 0x1p5
	}
	for i := range h.in.A {
		if row := i / h.p.K % h.p.M; row == 3 || row == h.p.M-1 {
			h.in.A[i] *= a / h.p.Scale()
		}
	}
	for i := range h.in.B {
		h.in.B[i] *= b
	}
}

func magnitudes(x []float64) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = math.Abs(x[i])
	}
	return y
}
