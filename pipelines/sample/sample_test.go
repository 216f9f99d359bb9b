package sample

import (
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
)

// TestLayouts compares the Go mirrors of this package with the shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "sample", map[string]layouttest.Row{"sample": layouttest.Of(params{}, spec{}, "Logits", "Seen", "State", "Tokens")})
}
