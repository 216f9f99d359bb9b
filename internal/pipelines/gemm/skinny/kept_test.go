package skinny_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestBackwardKept compares with products in float64: sizes 1, some about those of a block and
// of the rows that an invocation loads at once, pre with rows that start at multiples of 8
// elements and anywhere. Dpre has rows of a multiple of 8 elements, which it fills with zeros.
func TestBackwardKept(t *testing.T) {
	d := vktest.Open(t)
	for _, format := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
		for i, s := range []engine.Problem{
			{M: 1, N: 1, K: 1},
			{Batch: 3, M: 257, N: 45, K: 3},
			{Batch: 2, M: 37, N: 131, K: 8},
			{M: 520, N: 256, K: 2},
			{Batch: 2, M: 33, N: 7, K: 5},
			{M: 255, N: 129, K: 4},
		} {
			p := s
			p.DType, p.Out, p.TransB, p.Activation = format, format, true, engine.TimesDSiLU
			if i%2 == 0 {
				p.Out = dtype.Float32
			}
			layout := guard.Layout(i) % guard.Odd // dpre is aligned; of the rest, package mlp has odd ones
			t.Run(p.String(), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(2, uint64(p.N)))
				batch, padded := p.Batches(), (p.N+7)/8*8
				in := ref.Inputs{A: guard.Random(rng, format, batch*p.M*p.K, 1), B: guard.Random(rng, format, batch*p.N*p.K, 1), X: guard.Random(rng, format, batch*p.M*p.N, 2)}
				first, second := p, engine.Problem{Batch: p.Batch, M: p.N, N: p.K, K: p.M, TransA: true, DType: format, Out: p.Out}
				first.Activation, first.Out = engine.TimesDSiLUKeep, format
				want, plain := ref.Multiply(in, first), ref.Plain(in, first)
				wantW, plainW := ref.Multiply(ref.Inputs{A: want.S, B: in.A}, second), ref.Plain(ref.Inputs{A: plain.S, B: in.A}, second)
				rows := make([]float64, 0, batch*p.M*padded)
				for i := range batch * p.M {
					rows = append(append(rows, want.C[i*p.N:(i+1)*p.N]...), make([]float64, padded-p.N)...)
				}
				c := guard.Case{Name: "kept", Layout: layout, Tensors: []guard.Tensor{
					{Name: "dy", DType: format, Shape: p.AShape(), Values: in.A},
					{Name: "w", DType: format, Shape: p.BShape(), Values: in.B},
					{Name: "pre", DType: format, Shape: p.CShape(), Values: in.X},
					{Name: "dpre", DType: format, Shape: []int{batch, p.M, padded}, Want: rows, Bound: ref.NewBounds(want, plain, in, first).C},
					{Name: "dw", DType: p.Out, Shape: second.CShape(), Want: wantW.C, Bound: ref.NewBounds(wantW, plainW, ref.Inputs{A: want.S, B: in.A}, second).C},
				}}
				c.Test(t, d, func(c *vk.Cmd, t map[string]vk.Tensor) error {
					dpre := t["dpre"]
					dpre.Shape = p.CShape()
					return skinny.BackwardKept(c, skinny.Tensors{W: t["w"], Pre: t["pre"], DY: t["dy"], DPre: dpre, DW: t["dw"]}, p, engine.Options{})
				})
			})
		}
	}
}

// TestBackwardKeptErrors wants errors that say what BackwardKept does not do.
func TestBackwardKeptErrors(t *testing.T) {
	d := vktest.Open(t)
	good := engine.Problem{M: 2, N: 3, K: 4, TransB: true, Activation: engine.TimesDSiLU, DType: dtype.Float16, Out: dtype.Float32}
	plan, err := skinny.ChooseKept(d.Caps(), good)
	require.NoError(t, err)
	require.EqualValues(t, 4*3*4, plan.Workspace())
	for want, change := range map[string]func(p *engine.Problem){
		"gemm: problem 2x3x4 nt float16 to float32 silu is not dy * wᵀ, times silu'": func(p *engine.Problem) { p.Activation = engine.SiLU },
		"gemm: problem 2x3x4 nn float16 to float32 times-dsilu is not dy":            func(p *engine.Problem) { p.TransB = false },
		"alpha 2 times-dsilu is not dy":                                              func(p *engine.Problem) { p.Alpha = 2 },
		"m=0 is not from 1":                                                          func(p *engine.Problem) { p.M = 0 },
		"w has 9 columns, not from 1 to 8":                                           func(p *engine.Problem) { p.K = 9 },
		"gradients of float32 by pre and w at a time: no kernel":                     func(p *engine.Problem) { p.DType = dtype.Float32 },
		"is more than the device's":                                                  func(p *engine.Problem) { p.Batch = 1 << 29 },
	} {
		p := good
		change(&p)
		_, err := skinny.ChooseKept(d.Caps(), p)
		require.ErrorContains(t, err, want)
	}
	c, err := d.NewCmd("errors")
	require.NoError(t, err)
	defer c.Close()
	tensor := func(format dtype.DType, shape ...int) vk.Tensor { return vktest.Tensor(t, d, format, shape...) }
	half := dtype.Float16
	dpre, dw, dy, pre, w := tensor(half, 1, 2, 8), tensor(dtype.Float32, 1, 3, 4), tensor(half, 1, 2, 4), tensor(half, 1, 2, 3), tensor(half, 1, 3, 4)
	dpre.Shape = good.CShape()
	require.NoError(t, skinny.BackwardKept(c, skinny.Tensors{W: w, Pre: pre, DY: dy, DPre: dpre, DW: dw}, good, engine.Options{}))
	require.ErrorContains(t, skinny.BackwardKept(c, skinny.Tensors{W: w, Pre: pre, DY: dy, DPre: tensor(half, 1, 2, 3), DW: dw}, good, engine.Options{}), "gemm: dpre has offset 0 and strides [6 3 1]: not multiples of 8 elements")
	require.ErrorContains(t, skinny.BackwardKept(c, skinny.Tensors{W: w, Pre: pre, DY: dy, DPre: pre, DW: dw}, good, engine.Options{}), "gemm: dpre overlaps pre")
	require.ErrorContains(t, skinny.BackwardKept(c, skinny.Tensors{W: w, Pre: w, DY: dy, DPre: dpre, DW: dw}, good, engine.Options{}), "gemm: pre has shape [1 3 4]")
	require.ErrorContains(t, skinny.BackwardKept(c, skinny.Tensors{W: w, Pre: pre, DY: dy, DPre: dpre, DW: w}, good, engine.Options{}), fmt.Sprintf("gemm: dw is %v, want float32", half))
}
