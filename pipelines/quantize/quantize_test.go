package quantize

import (
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
)

// TestLayouts compares the Go mirrors of this package with the shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "quantize", map[string]layouttest.Row{"quantize": layouttest.Of(params{}, spec{}, "X", "Y", "Scale", "Parts")})
}
