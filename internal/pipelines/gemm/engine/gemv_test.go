package engine_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
)

// TestGEMV checks drawn calls of path gemv, with the table's tiles and with others.
func TestGEMV(t *testing.T) {
	d := vktest.Open(t)
	require.NoError(t, call.TestDrawn(t, d, "gemm", 40, call.Space{Impls: []string{"gemv"}, Soft: true, Work: 1e6}, func(call.Call) {}))
}
