package optim

import (
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
)

// ChunkElements is the size of a piece of a tensor.
const ChunkElements = chunkElements

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "adamw", map[string]layouttest.Row{
		"adamw":         layouttest.Of(updateParams{}, updateSpec{}, "Chunks", "StateBuffer", "Param", "Grad", "M", "V", "Copy"),
		"adamw_norm":    layouttest.Of(normParams{}, normSpec{}, "Chunks", "Grad", "Sums"),
		"adamw_prepare": layouttest.Of(prepareParams{}, prepareSpec{}, "Sums", "StateBuffer"),
	})
}
