package skinny_test

import (
	"fmt"
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

// gradients returns dpre and dw of Backward as chains of products. Second and third are the last
// two products.
func (h *hiddenCase) gradients(dy []float64, second, third engine.Problem, multiply func(ref.Inputs, engine.Problem) ref.Outputs) (dpre, dw ref.Outputs) {
	pre := h.p
	pre.Activation, pre.Out = engine.Identity, h.p.DType
	second.Activation = engine.TimesDSiLUKeep
	dpre = multiply(ref.Inputs{A: dy, B: h.w, X: multiply(h.in, pre).C}, second)
	return dpre, multiply(ref.Inputs{A: dpre.S, B: dy}, third)
}

// TestBackward compares with products in float64: with the tuning table's tiles, and
// with tiles whose columns leave in several strips, or with several subgroups below each
// other. Dpre has rows of a multiple of 8 elements, which it fills with zeros.
func TestBackward(t *testing.T) {
	d := vktest.Open(t)
	stages, high := tiles(1, 2, 1, 3), tiles(3, 1, 2, 1)
	each(t, d, []sizedCase{
		{engine.Problem{M: 1, N: 1, K: 1}, 1, nil},
		{engine.Problem{Batch: 3, M: 130, N: 45, K: 19, Alpha: 0.5}, 3, nil},
		{engine.Problem{Batch: 2, M: 37, N: 149, K: 9}, 8, stages},
		{engine.Problem{Batch: 2, M: 117, N: 43, K: 9}, 2, high},
		{engine.Problem{M: 50, N: 70, K: 40, TransA: true, TransB: true}, 5, stages},
	}, func(i int, p engine.Problem, columns int, o engine.Options) {
		format := p.DType
		p.Activation = engine.SiLU
		if i%2 == 0 {
			p.Out = dtype.Float32
		}
		layout := guard.Layout(i) % guard.Odd // dpre is aligned; of the rest, package mlp has odd ones
		t.Run(fmt.Sprintf("%v/%d", p, columns), func(t *testing.T) {
			h := newHiddenCase(p, columns)
			batch := p.Batches()
			dy := h.random(batch * p.M * columns)
			second := engine.Problem{Batch: p.Batch, M: p.M, N: p.N, K: columns, TransB: true, DType: format, Out: format}
			third := engine.Problem{Batch: p.Batch, M: p.N, N: columns, K: p.M, TransA: true, DType: format, Out: p.Out}
			wantPre, wantW := h.gradients(dy, second, third, ref.Multiply)
			plainPre, plainW := h.gradients(dy, second, third, ref.Plain)
			padded := (p.N + 7) / 8 * 8
			rows := make([]float64, 0, batch*p.M*padded)
			for i := range batch * p.M {
				rows = append(append(rows, wantPre.C[i*p.N:(i+1)*p.N]...), make([]float64, padded-p.N)...)
			}
			c := guard.Case{Name: "backward", Layout: layout, Tensors: append(h.tensors,
				guard.Tensor{Name: "dy", DType: format, Shape: []int{batch, p.M, columns}, Values: dy},
				guard.Tensor{Name: "dpre", DType: format, Shape: []int{batch, p.M, padded}, Want: rows, Bound: ref.NewBounds(wantPre, plainPre, ref.Inputs{A: dy, B: h.w}, second).C},
				guard.Tensor{Name: "dw", DType: p.Out, Shape: third.CShape(), Want: wantW.C, Bound: ref.NewBounds(wantW, plainW, ref.Inputs{A: wantPre.S, B: dy}, third).C})}
			c.Test(t, d, func(c *vk.Cmd, t map[string]vk.Tensor) error {
				dpre := t["dpre"]
				dpre.Shape = p.CShape()
				return skinny.Backward(c, skinny.Tensors{A: t["a"], B: t["b"], W: t["w"], DY: t["dy"], DPre: dpre, DW: t["dw"]}, columns, p, o)
			})
		})
	})
}

// TestBackwardErrors wants errors that say what Backward does not do.
func TestBackwardErrors(t *testing.T) {
	d := vktest.Open(t)
	p := engine.Problem{M: 2, N: 3, K: 4, Activation: engine.SiLU, DType: dtype.Float16, Out: dtype.Float32}
	_, err := skinny.ChooseBackward(d.Caps(), p, 9, engine.Options{Impl: engine.CoopMat})
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorContains(t, err, "w has 9 columns, not from 1 to 8")
	if _, err := skinny.ChooseBackward(d.Caps(), p, 3, engine.Options{Impl: engine.CoopMat}); err != nil {
		t.Skip(err)
	}
	c, err := d.NewCmd("errors")
	require.NoError(t, err)
	defer c.Close()
	tensor := func(format dtype.DType, shape ...int) vk.Tensor { return vktest.Tensor(t, d, format, shape...) }
	half := dtype.Float16
	dw, dy, a, b, w := tensor(dtype.Float32, 1, 3, 3), tensor(half, 1, 2, 3), tensor(half, 1, 2, 4), tensor(half, 1, 4, 3), tensor(half, 1, 3, 3)
	try := func(dpre vk.Tensor) error {
		c.Reset()
		return skinny.Backward(c, skinny.Tensors{A: a, B: b, W: w, DY: dy, DPre: dpre, DW: dw}, 3, p, engine.Options{Impl: engine.CoopMat})
	}
	require.ErrorContains(t, try(tensor(half, 1, 2, 3)), "gemm: dpre has offset 0 and strides [6 3 1]: not multiples of 8 elements")
	require.ErrorContains(t, try(tensor(half, 1, 2, 8)), "gemm: dpre has shape [1 2 8] and strides [16 8 1], want shape [1 2 3]")
	dpre := tensor(half, 1, 2, 8)
	dpre.Shape = p.CShape()
	require.NoError(t, try(dpre))
	dw = tensor(half, 1, 3, 3)
	require.ErrorContains(t, try(dpre), "gemm: dw is float16, want float32")
}
