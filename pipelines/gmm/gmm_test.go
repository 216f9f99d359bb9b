package gmm

import (
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
)

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "gmm_", map[string]layouttest.Row{
		"gmm_merge": layouttest.Of(mergeParams{}, lossSpec{}, "States", "LogP", "Parts", "Loss", "Count"),
		"gmm_fwd":   layouttest.Of(fwdParams{}, fwdSpec{}, "Logit", "Mu", "LogSigma", "Y", "LogP", "Parts", "Loss", "Count"),
		"gmm_bwd":   layouttest.Of(bwdParams{}, bwdSpec{}, "Logit", "Mu", "LogSigma", "Y", "DLoss", "DLogit", "DMu", "DLogSigma"),
	})
}
