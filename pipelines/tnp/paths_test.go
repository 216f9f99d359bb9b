package tnp

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gemm"
)

// TestPathsRun wants kernels of the path and the variant that are forced.
func TestPathsRun(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	p, err := PresetOf("tiny")
	require.NoError(t, err)
	modules := func(format dtype.DType, o PlanOptions) (names []string, err error) {
		m, err := NewModel(ctx, d, p.Config, ModelOptions{DType: format, Pass: Gradients})
		require.NoError(t, err)
		defer m.Close()
		plan, err := m.NewPlan(ctx, p.Shape, Gradients, o)
		if err != nil {
			return nil, err
		}
		defer plan.Close()
		for _, x := range plan.Modules() {
			names = append(names, x.Name)
		}
		return names, nil
	}
	base := func(name string) string { base, _, _ := strings.Cut(name, "."); return base }
	for _, path := range attention.Impls() {
		for _, format := range []dtype.DType{dtype.Float32, dtype.Float16} {
			t.Run(fmt.Sprint(path, format), func(t *testing.T) {
				o := PlanOptions{Attention: path, Products: gemm.Scalar}
				if path == attention.CoopMat {
					o.Products = gemm.CoopMat
				}
				names, err := modules(format, o)
				vktest.Require(t, path.String(), err)
				of := func(name string, path attention.Impl) bool {
					return strings.HasSuffix(base(name), "_"+path.String()) || path == attention.Unfused && strings.HasPrefix(name, "attention_unfused_")
				}
				kernels := 0
				for _, name := range names {
					if !strings.HasPrefix(name, "attention_") || strings.HasPrefix(name, "attention_decode") { // which all paths may take
						continue
					}
					for _, other := range attention.Impls() {
						require.False(t, other != path && of(name, other), name)
					}
					if of(name, path) {
						kernels++
					}
				}
				require.GreaterOrEqual(t, kernels, 3, "forward, and backward at least two: %v", names)
				for _, other := range []gemm.Impl{gemm.Scalar, gemm.CoopMat} {
					require.Equal(t, other == o.Products, slices.ContainsFunc(names, func(name string) bool { return base(name) == "gemm_"+other.String() }), names)
				}
			})
		}
	}
	for v, want := range map[Variant]map[string]bool{
		Unfused:  {"attention_unfused_softmax": true, "gmm_fwd": true, "gemm_pair": false, "gemm_mixture": false},
		Separate: {"attention_unfused_softmax": false, "gmm_fwd": true, "gemm_pair": false, "gemm_mixture": false},
		Fused:    {"attention_unfused_softmax": false, "gmm_fwd": false, "gemm_pair": true, "gemm_mixture": true},
	} {
		t.Run(v.String(), func(t *testing.T) {
			names, err := modules(dtype.Float16, PlanOptions{Variant: v})
			vktest.Require(t, v.String(), err)
			for module, there := range want {
				require.Equal(t, there, slices.ContainsFunc(names, func(name string) bool { return base(name) == module }), "%s in %v", module, names)
			}
		})
	}
}
