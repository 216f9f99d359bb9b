package shaders

import "testing"

// TestHash says that a hash is of the modules that it names, of their types, and no others.
func TestHash(t *testing.T) {
	seen := map[string]string{}
	for _, of := range [][]string{
		{"f16", "norm_fwd"}, {"bf16", "norm_fwd"}, {"f16", "norm_bwd"}, {"f16", "norm_fwd", "norm_bwd"}, {"f16", "norm_fwd", "gemm_combine"}, {"f16"},
	} {
		h := Hash(of[0], of[1:]...)
		if h != Hash(of[0], of[1:]...) || len(h) != 16 {
			t.Errorf("%v: %s, and then %s", of, h, Hash(of[0], of[1:]...))
		}
		if other, ok := seen[h]; ok {
			t.Errorf("%v and %s have one hash", of, other)
		}
		seen[h] = of[0]
	}
	if Hash("f16", "gemm_combine") != Hash("f32", "gemm_combine") {
		t.Error("a kernel of one type is hashed by type")
	}
}
