package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSelftest(t *testing.T) {
	_, dev := device(t)
	code, stdout, stderr := flashvk("selftest", dev, "--impl=scalar", "--budget=2s", "--format=markdown")
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	require.Contains(t, stdout, "| path | pass | type | verdict | right |")
	require.Regexp(t, `\| scalar \| forward \| float32 \| (pass|not run) \|`, stdout)
	require.Contains(t, stdout, "| fma f32 | ")
	require.NotContains(t, stdout, "WRONG")
}
