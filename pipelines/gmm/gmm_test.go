package gmm

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
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

func TestValidate(t *testing.T) {
	require.NoError(t, Problem{Tokens: 1, Components: 1}.Validate())
	require.EqualError(t, Problem{Components: 1}.Validate(), "gmm: tokens=0 is not positive")
	require.EqualError(t, Problem{Tokens: 1}.Validate(), "gmm: components=0 is not positive")
	require.EqualError(t, Problem{Tokens: 1 << 20, Components: 1 << 20}.Validate(), "gmm: tokens=1048576 by components=1048576 are more than 1431655765")
	require.EqualError(t, Problem{Tokens: 1, Components: 1, DType: dtype.Bool}.Validate(), "gmm: dtype=bool is not one of float32, float16, bfloat16")
	require.EqualError(t, Problem{Tokens: 1, Components: 1, Grad: dtype.Some(dtype.Int32)}.Validate(), "gmm: grad=int32 is not one of float32, float16, bfloat16")
}
