package rope_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
)

// TestDrawn checks drawn calls.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	require.NoError(t, call.TestDrawn(t, d, "rope", 40, call.Space{}, nil))
}
