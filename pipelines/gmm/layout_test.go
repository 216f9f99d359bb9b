package gmm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/shaders"
)

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	merge, err := shaders.Get("gmm_merge", "")
	require.NoError(t, err)
	layouttest.Check(t, merge, mergeParams{}, lossSpec{}, "States", "LogP", "Parts", "Loss", "Count")
	for _, format := range dtype.All() {
		fwd, err := shaders.Get("gmm_fwd", format.Short())
		require.NoError(t, err)
		layouttest.Check(t, fwd, fwdParams{}, fwdSpec{}, "Logit", "Mu", "LogSigma", "Y", "LogP", "Parts", "Loss", "Count")
		bwd, err := shaders.Get("gmm_bwd", format.Short())
		require.NoError(t, err)
		layouttest.Check(t, bwd, bwdParams{}, bwdSpec{}, "Logit", "Mu", "LogSigma", "Y", "DLoss", "DLogit", "DMu", "DLogSigma")
	}
}
