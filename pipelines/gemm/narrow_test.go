package gemm_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
)

// TestNarrow compares with two products in float64: with the tuning table's tiles, and with
// tiles whose rows leave in several strips, which are added to one another. The first product
// is written or not.
func TestNarrow(t *testing.T) {
	d := vktest.Open(t)
	for format, shape := range matrixFormats(t, d) {
		strips, wide := matrixConfig(1, 1, 1, 4, shape), matrixConfig(1, 2, 2, 1, shape)
		for i, s := range []struct {
			p       gemm.Problem
			columns int
			config  *gemm.Config
		}{
			{gemm.Problem{M: 1, N: 1, K: 1}, 1, nil},
			{gemm.Problem{Batch: 3, M: 37, N: 45, K: 19, Alpha: 0.5}, 3, nil},
			{gemm.Problem{Batch: 2, M: 37, N: 150, K: 9}, 8, strips},
			{gemm.Problem{Batch: 2, M: 21, N: 50, K: 9}, 2, wide},
			{gemm.Problem{M: 20, N: 70, K: 40, TransA: true, TransB: true}, 5, strips},
		} {
			p := s.p
			p.DType, p.Out = format, format
			layout := guard.Layout(i) % guard.Layouts
			for _, p.Activation = range []gemm.Activation{gemm.SiLU, gemm.SiLUKeep} {
				if keep := p.Activation == gemm.SiLUKeep; keep != (i%2 == 1) && !vktest.Thorough(d) {
					continue // the first product is written in every other case
				}
				t.Run(fmt.Sprintf("%v/%d", p, s.columns), func(t *testing.T) {
					h := newHiddenCase(p, s.columns)
					want, plain := h.outputs(ref.Multiply), h.outputs(ref.Plain)
					c := guard.Case{Name: "narrow", Layout: layout, Tensors: append(h.tensors,
						guard.Tensor{Name: "y", DType: format, Shape: h.second.CShape(), Want: want.C, Bound: ref.NewBounds(want, plain, ref.Inputs{A: ref.Multiply(h.in, p).C, B: h.w}, h.second).C})}
					if p.HasX() {
						want, plain := ref.Multiply(h.in, p), ref.Plain(h.in, p)
						c.Tensors = append(c.Tensors, guard.Tensor{Name: "x", DType: format, Shape: p.CShape(), Want: want.X, Bound: ref.NewBounds(want, plain, h.in, p).X})
					}
					c.Test(t, d, func(c *vk.Cmd, t map[string]vk.Tensor) error {
						return gemm.Narrow(c, t["y"], t["a"], t["b"], t["w"], s.columns, p, gemm.Options{Impl: gemm.CoopMat, Config: s.config, X: t["x"]})
					})
				})
			}
		}
	}
}

// TestNarrowErrors wants errors that say what Narrow does not do.
func TestNarrowErrors(t *testing.T) {
	d := vktest.Open(t)
	p := gemm.Problem{M: 2, N: 3, K: 4, Activation: gemm.SiLU, DType: dtype.Float16, Out: dtype.Float16}
	_, err := gemm.NarrowWorkspace(d.Caps(), p, 9, gemm.Options{Impl: gemm.CoopMat})
	require.ErrorIs(t, err, gemm.ErrUnsupported)
	require.ErrorContains(t, err, "w has 9 columns, not from 1 to 8")
	_, err = gemm.NarrowWorkspace(d.Caps(), p, 3, gemm.Options{Impl: gemm.Scalar})
	require.ErrorIs(t, err, gemm.ErrUnsupported)
	p.Activation = gemm.Identity
	_, err = gemm.NarrowWorkspace(d.Caps(), p, 3, gemm.Options{Impl: gemm.CoopMat})
	require.ErrorContains(t, err, "has another epilogue than silu")
	p.Activation, p.DType = gemm.SiLU, dtype.Float32
	_, err = gemm.NarrowWorkspace(d.Caps(), p, 3, gemm.Options{Impl: gemm.CoopMat})
	require.ErrorIs(t, err, gemm.ErrUnsupported)
}
