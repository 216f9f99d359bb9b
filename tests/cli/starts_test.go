package cli

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStarts says that a first start compiles, and that a second one finds the pipelines in the
// cache.
func TestStarts(t *testing.T) {
	_, dev := device(t)
	code, stdout, stderr := flashvk(t, "bench", "overhead", dev, "--impl=scalar", "--dtype=float32", "--count=1", "--starts", "--format=benchfmt")
	require.Zero(t, code, stderr)
	require.Regexp(t, `\nBenchmarkAttentionOverhead/impl=scalar/.* [0-9.e+]+ cold-start-ns [0-9.e+]+ warm-start-ns\n`, stdout)
	code, stdout, stderr = flashvk(t, "bench", "overhead", dev, "--impl=scalar", "--dtype=float32", "--count=1", "--starts=false")
	require.Zero(t, code, stderr)
	require.Regexp(t, `\nscalar +1 `, stdout)
	require.NotContains(t, stdout, "cold")
}
