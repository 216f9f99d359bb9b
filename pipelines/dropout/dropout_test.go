package dropout

import (
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
)

// TestLayouts compares the Go mirrors of this package with the shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "dropout", map[string]layouttest.Row{"dropout": layouttest.Of(params{}, spec{}, "X", "State", "Y")})
}
