package problem_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
)

// TestParseGroup wants what Sizes returns to be read, and an error that names the word.
func TestParseGroup(t *testing.T) {
	products, err := problem.ParseGroup("128x512x64,0x1x7")
	require.NoError(t, err)
	require.Equal(t, []problem.Product{{M: 128, N: 512, K: 64}, {N: 1, K: 7}}, products)
	require.Equal(t, "128x512x64,0x1x7", problem.Group{Products: products}.Sizes())
	for text, word := range map[string]string{"": "", "1x2x3,": "", "1x2": "1x2", "1x2x3 ": "1x2x3 ", "1x2x3x4": "1x2x3x4", "ax2x3": "ax2x3"} {
		_, err := problem.ParseGroup(text)
		require.EqualError(t, err, fmt.Sprintf("gemm: product %q of a group is not MxNxK, as in 128x512x64", word))
	}
	g := problem.Group{Products: make([]problem.Product, 6), TransB: true, Activation: problem.SiLU, DType: dtype.BFloat16, Out: dtype.Float32}
	for i := range g.Products {
		g.Products[i] = problem.Product{M: i, N: 2, K: 3, Alpha: 0.5}
	}
	require.Equal(t, "group 0x2x3,1x2x3,2x2x3 and 3 more nt bfloat16 to float32 alpha 0.5 silu", g.String())
	g.Products[5].Alpha = 1
	require.Equal(t, "group 0x2x3,1x2x3,2x2x3 and 3 more nt bfloat16 to float32 silu", g.String())
}
