package engine_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestPad copies matrices of odd sizes to rows that hold those of all matrices, and wants
// the zeros after each.
func TestPad(t *testing.T) {
	d := vktest.Open(t)
	for _, format := range dtype.All() {
		for layout := range guard.Layouts {
			t.Run(fmt.Sprintf("%v/layout=%d", format, layout), func(t *testing.T) {
				const batch, rows, cols, stride = 3, 5, 11, 16 // stride: with the zeros, of all formats
				size := 16 / format.Size()
				zeros := (cols+size-1)/size*size - cols
				var src []float64
				before := slices.Repeat([]float64{-1}, rows*batch*stride)
				want := slices.Clone(before)
				for b := range batch {
					for r := range rows {
						line := want[(r*batch+b)*stride:]
						clear(line[:cols+zeros])
						for c := range cols {
							line[c] = float64(len(src) + 1)
							src = append(src, line[c])
						}
					}
				}
				c := guard.Case{Name: "pad", Layout: layout, Flat: []string{"dst"}, Tensors: []guard.Tensor{
					{Name: "src", DType: format, Shape: []int{batch, rows, cols}, Values: src},
					{Name: "dst", DType: format, Shape: []int{rows, batch * stride}, Values: before, Want: want},
				}}
				_, err := c.Check(d, func(c *vk.Cmd, t map[string]vk.Tensor) error {
					dst := t["dst"]
					dst.Shape, dst.Strides = []int{batch, rows, cols}, []int{stride, batch * stride, 1}
					return engine.Pad(c, dst, t["src"])
				})
				if layout == guard.Odd {
					require.ErrorContains(t, err, "not multiples of 16 bytes")
					return
				}
				require.NoError(t, err)
			})
		}
	}
}

// TestPadArguments wants errors that say what does not fit.
func TestPadArguments(t *testing.T) {
	d := vktest.Open(t)
	c, err := d.NewCmd("arguments")
	require.NoError(t, err)
	defer c.Close()
	src := vktest.Tensor(t, d, dtype.Float16, 2, 3, 5)
	dst := vktest.Tensor(t, d, dtype.Float16, 2, 3, 8)
	require.ErrorContains(t, engine.Pad(c, dst, src), "gemm: dst has shape [2 3 8]")
	dst.Shape = src.Shape
	c.Reset()
	require.NoError(t, engine.Pad(c, dst, src))
	require.ErrorContains(t, engine.Pad(c, src, dst), "not multiples of 16 bytes")
	require.ErrorContains(t, engine.Pad(c, dst, vk.View(src.Buffer, dtype.Float16, 6, 5)), "gemm: src has shape [6 5], want three axes")
	short, err := d.NewTensor("short", dtype.Float16, 46) // room for the last row, but not for its zeros
	require.NoError(t, err)
	defer short.Close()
	short.Shape, short.Strides = src.Shape, []int{24, 8, 1}
	require.ErrorContains(t, engine.Pad(c, short, src), "gemm: dst with its zeros ends at byte 96 of a buffer of 92")
}
