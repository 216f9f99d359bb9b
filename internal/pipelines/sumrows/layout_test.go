package sumrows

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/shaders"
)

// TestLayout compares the Go mirrors of this package with the shader.
func TestLayout(t *testing.T) {
	for _, format := range dtype.All() {
		module, err := shaders.Get("sum_rows", format.Short())
		require.NoError(t, err)
		layouttest.Check(t, module, params{}, spec{}, "Parts", "Dst")
	}
}
