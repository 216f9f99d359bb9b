package quantize_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// TestDrawn checks drawn calls.
func TestDrawn(t *testing.T) {
	require.NoError(t, call.TestDrawn(t, vktest.Open(t, vktest.WholeBuffers), "quantize", 40, call.Space{}, nil))
}
