package norm

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/shaders"
)

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	table := map[string]struct {
		params, spec any
		bindings     []string
	}{
		"norm_fwd": {fwdParams{}, fwdSpec{}, []string{"X", "Residual", "W", "Y", "Sum", "Mean", "Rstd"}},
		"norm_bwd": {bwdParams{}, bwdSpec{}, []string{"S", "DY", "DSum", "W", "Mean", "Rstd", "DX", "DResidual", "Parts"}},
	}
	for _, v := range shaders.Variants() {
		if !strings.HasPrefix(v.Kernel, "norm_") {
			continue
		}
		row, ok := table[v.Kernel]
		require.True(t, ok, "%s has no row in TestLayouts", v.Kernel)
		module, err := shaders.Get(v.Kernel, v.Type)
		require.NoError(t, err)
		layouttest.Check(t, module, row.params, row.spec, row.bindings...)
	}
}
