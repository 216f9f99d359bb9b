package sumrows

import (
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
)

// TestLayout compares the Go mirrors of this package with the shader.
func TestLayout(t *testing.T) {
	layouttest.CheckAll(t, "sum_rows", map[string]layouttest.Row{"sum_rows": layouttest.Of(params{}, spec{}, "Parts", "Dst")})
}
