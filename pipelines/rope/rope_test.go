package rope

import (
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
)

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "rope", map[string]layouttest.Row{
		"rope": layouttest.Of(params{}, spec{}, "Q", "K", "Positions", "Turns", "QOut", "KOut"),
	})
}
