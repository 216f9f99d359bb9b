package norm

import (
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
)

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "norm_", map[string]layouttest.Row{
		"norm_fwd": layouttest.Of(fwdParams{}, fwdSpec{}, "X", "Residual", "W", "Y", "Sum", "Mean", "Rstd"),
		"norm_bwd": layouttest.Of(bwdParams{}, bwdSpec{}, "S", "DY", "DSum", "W", "Mean", "Rstd", "DX", "DResidual", "Parts"),
	})
}
