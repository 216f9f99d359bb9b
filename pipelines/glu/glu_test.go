package glu

import (
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
)

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "glu_", map[string]layouttest.Row{
		"glu_fwd": layouttest.Of(fwdParams{}, spec{}, "G", "U", "Y"),
		"glu_bwd": layouttest.Of(bwdParams{}, spec{}, "G", "U", "DY", "DG", "DU"),
	})
}
