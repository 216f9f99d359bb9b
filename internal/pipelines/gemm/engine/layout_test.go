package engine

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/shaders"
)

// TestLayouts compares every Go mirror of this package with its shader, for every
// element type that is compiled. Packages skinny, and fused of mlp, have the others.
func TestLayouts(t *testing.T) {
	table := map[string]struct {
		spec     any
		bindings []string
	}{
		"gemm_coopmat":            {coopMatSpec{}, []string{"A", "B", "C4", "R4", "X4", "S4"}},
		"gemm_fragments":          {fragmentsSpec{}, []string{"X", "W1", "W2", "Out"}},
		"gemm_scalar":             {scalarSpec{}, []string{"A", "B", "C4", "R4", "X4", "S4"}},
		"gemm_coopmat_group":      {MatrixSpec{}, []string{"A", "B", "C4", "R4", "X4", "S4", "Table"}},
		"gemm_coopmat_fragmented": {fragmentedSpec{}, []string{"A", "B", "C4", "R4", "X4", "S4"}},
		"gemm_scalar_group":       {scalarSpec{}, []string{"A", "B", "C4", "R4", "X4", "S4", "Table"}},
		"gemm_combine":            {combineSpec{}, []string{"Sums", "C4", "R4", "X4", "S4"}},
		"gemm_pack":               {packSpec{}, []string{"A", "Out"}},
		"gemm_tops":               {topsSpec{}, []string{"A", "B", "Tops"}},
		"gemm_parts":              {partsSpec{}, []string{"A", "B", "Parts"}},
	}
	found := 0
	for _, v := range shaders.Variants() {
		row, ok := table[v.Kernel]
		if !ok {
			elsewhere := slices.Contains([]string{"gemm_pair", "gemm_narrow", "gemm_narrow_fragmented", "gemm_narrow_bwd", "gemm_narrow_dsilu", "gemm_mixture"}, v.Kernel)
			require.True(t, elsewhere || !strings.HasPrefix(v.Kernel, "gemm_"), "%s has no row in TestLayouts", v.Kernel)
			continue
		}
		found++
		module, err := shaders.Get(v.Kernel, v.Type)
		require.NoError(t, err)
		var push any = Params{}
		switch {
		case v.Kernel == "gemm_pack":
			push = packParams{}
		case v.Kernel == "gemm_fragments":
			push = fragmentsParams{}
		case v.Kernel == "gemm_tops", v.Kernel == "gemm_parts":
			push = partsParams{}
		case strings.HasSuffix(v.Kernel, "_group"):
			push = groupParams{}
			layouttest.CheckRows(t, module, "Table", groupRow{})
		}
		layouttest.Check(t, module, push, row.spec, row.bindings...)
	}
	require.GreaterOrEqual(t, found, len(table))
}
