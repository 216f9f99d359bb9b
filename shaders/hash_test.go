package shaders

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestHash says that a hash is of the modules that it names, of their types, and no others.
func TestHash(t *testing.T) {
	seen := map[string]string{}
	for _, of := range [][]string{
		{"f16", "norm_fwd"}, {"bf16", "norm_fwd"}, {"f16", "norm_bwd"}, {"f16", "norm_fwd", "norm_bwd"}, {"f16", "norm_fwd", "gemm_combine"}, {"f16"},
	} {
		h := Hash(of[0], of[1:]...)
		require.Equal(t, Hash(of[0], of[1:]...), h)
		require.Len(t, h, 16)
		if other, ok := seen[h]; ok {
			t.Errorf("%v and %s have one hash", of, other)
		}
		seen[h] = of[0]
	}
	require.Equal(t, Hash("f32", "gemm_combine"), Hash("f16", "gemm_combine"))
}
