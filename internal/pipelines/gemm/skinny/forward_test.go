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
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestForward compares with two products in float64: with the tuning table's tiles, and with
// tiles whose rows leave in several strips, which are added to one another, or, with op(B) in
// fragments, as second products. The first product
// is written or not.
func TestForward(t *testing.T) {
	d := vktest.Open(t)
	each(t, d, []sizedCase{
		{engine.Problem{M: 1, N: 1, K: 1}, 1, nil},
		{engine.Problem{Batch: 3, M: 37, N: 45, K: 19, Alpha: 0.5}, 3, nil},
		{engine.Problem{Batch: 2, M: 37, N: 150, K: 9}, 8, strips},
		{engine.Problem{Batch: 2, M: 21, N: 50, K: 9}, 2, wide},
		{engine.Problem{Batch: 3, M: 37, N: 45, K: 19}, 3, fragments},
		{engine.Problem{Batch: 2, M: 37, N: 45, K: 40}, 8, fragments},
		{engine.Problem{Batch: 2, M: 21, N: 88, K: 40}, 3, runs},
		{engine.Problem{M: 21, N: 83, K: 9, Alpha: 0.5}, 2, runs},
		{engine.Problem{M: 20, N: 70, K: 40, TransA: true, TransB: true}, 5, strips},
	}, func(i int, p engine.Problem, columns int, o engine.Options) {
		format := p.DType
		layout := guard.Layout(i) % guard.Layouts
		for _, p.Activation = range []engine.Activation{engine.SiLU, engine.SiLUKeep} {
			if keep := p.Activation == engine.SiLUKeep; keep != (i%2 == 1 || p.N > 80) && !vktest.Thorough(d) {
				continue // the first product is written in every other case
			}
			t.Run(fmt.Sprintf("%v/%d", p, columns), func(t *testing.T) {
				h := newHiddenCase(p, columns)
				want, plain := h.outputs(ref.Multiply), h.outputs(ref.Plain)
				c := guard.Case{Name: "forward", Layout: layout, Tensors: append(h.tensors,
					guard.Tensor{Name: "y", DType: format, Shape: h.second.CShape(), Want: want.C, Bound: ref.NewBounds(want, plain, ref.Inputs{A: ref.Multiply(h.in, p).C, B: h.w}, h.second).C})}
				if p.HasX() {
					want, plain := ref.Multiply(h.in, p), ref.Plain(h.in, p)
					c.Tensors = append(c.Tensors, guard.Tensor{Name: "pre", DType: format, Shape: p.CShape(), Want: want.X, Bound: ref.NewBounds(want, plain, h.in, p).X})
				}
				c.Test(t, d, func(c *vk.Cmd, t map[string]vk.Tensor) error {
					return skinny.Forward(c, skinny.Tensors{A: t["a"], B: t["b"], W: t["w"], Y: t["y"], Pre: t["pre"]}, columns, p, o)
				})
			})
		}
	})
}

// TestForwardParts wants float32 results where op(B) is in fragments, which show whether hidden units
// went in parts of 16 bits: the same bits whatever lies around a, of which rows beyond its last one are
// made, and right ones of hidden units that are too large for parts.
func TestForwardParts(t *testing.T) {
	d := vktest.Open(t)
	each(t, d, []sizedCase{
		{engine.Problem{Batch: 2, M: 21, N: 45, K: 19, Alpha: 16}, 3, alone},
	}, func(_ int, p engine.Problem, columns int, o engine.Options) {
		p.Out = dtype.Float32
		for _, p.Activation = range []engine.Activation{engine.SiLU, engine.SiLUKeep} {
			for _, large := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v/%d large=%v", p, columns, large), func(t *testing.T) {
					h := newHiddenCase(p, columns)
					part := 0x1p-20 // of a hidden unit, its error in two parts
					if p.DType == dtype.BFloat16 {
						part = 0x1p-14
					}
					if large {
						h.enlarge()
					}
					want, plain := h.outputs(ref.Multiply), h.outputs(ref.Plain)
					hidden := ref.Multiply(h.in, p)
					bound := ref.NewBounds(want, plain, ref.Inputs{A: hidden.C, B: h.w}, h.second).C +
						part*tolerance.Largest(ref.Multiply(ref.Inputs{A: magnitudes(hidden.C), B: magnitudes(h.w)}, h.second).C)
					c := guard.Case{Name: "forward", Layout: guard.Odd, Tensors: append(h.tensors,
						guard.Tensor{Name: "y", DType: p.Out, Shape: h.second.CShape(), Want: want.C, Bound: bound})}
					if p := p; p.HasX() {
						p.Out = p.DType
						want, plain := ref.Multiply(h.in, p), ref.Plain(h.in, p)
						c.Tensors = append(c.Tensors, guard.Tensor{Name: "pre", DType: p.DType, Shape: p.CShape(),
							Want: want.X, Bound: ref.NewBounds(want, plain, h.in, p).X,
							Place: &guard.Place{Aligned: true}}) // so that it leaves straight from registers
					}
					c.Test(t, d, func(c *vk.Cmd, t map[string]vk.Tensor) error {
						return skinny.Forward(c, skinny.Tensors{A: t["a"], B: t["b"], W: t["w"], Y: t["y"], Pre: t["pre"]}, columns, p, o)
					})
				})
			}
		}
	})
}

// TestForwardErrors wants errors that say what Forward does not do.
func TestForwardErrors(t *testing.T) {
	d := vktest.Open(t)
	p := engine.Problem{M: 2, N: 3, K: 4, Activation: engine.SiLU, DType: dtype.Float16, Out: dtype.Float16}
	_, err := skinny.ChooseForward(d.Caps(), p, 9, engine.Options{Impl: engine.CoopMat})
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorContains(t, err, "w has 9 columns, not from 1 to 8")
	_, err = skinny.ChooseForward(d.Caps(), p, 3, engine.Options{Impl: engine.Scalar})
	require.ErrorIs(t, err, vk.ErrUnsupported)
	p.Activation = engine.Identity
	_, err = skinny.ChooseForward(d.Caps(), p, 3, engine.Options{Impl: engine.CoopMat})
	require.ErrorContains(t, err, "has another epilogue than silu")
	p.Activation, p.DType = engine.SiLU, dtype.Float32
	_, err = skinny.ChooseForward(d.Caps(), p, 3, engine.Options{Impl: engine.CoopMat})
	require.ErrorIs(t, err, vk.ErrUnsupported)
}
