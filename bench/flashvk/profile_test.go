package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProfileAttention(t *testing.T) {
	_, dev := device(t)
	trace := filepath.Join(t.TempDir(), "trace.json")
	args := []string{"profile", "attention", dev, "--batch=1", "--heads=2", "--seqlen=40", "--headdim=16", "--causal", "--impl=unfused", "--count=2"}
	code, stdout, stderr := flashvk(append(args, "--trace", trace)...)
	require.Zero(t, code, stderr)
	require.Equal(t, "flashvk: wrote "+trace+"\n", stderr)
	for _, want := range []string{"attention_unfused_scores.f16", "attention_unfused_softmax", "attention_unfused_values.f16", "\nall ", "fma f32", "copy", "causal (bottom-right)"} {
		require.Contains(t, stdout, want)
	}
	text, err := os.ReadFile(trace)
	require.NoError(t, err)
	require.Contains(t, string(text), `"traceEvents":[`)
	code, stdout, _ = flashvk(append(args, "--format=markdown")...)
	require.Zero(t, code)
	require.Contains(t, stdout, "| kernel | time |")

	code, stdout, stderr = flashvk(append(args, "--trace", filepath.Join(trace, "x"))...)
	require.Equal(t, 1, code)
	require.NotEmpty(t, stdout)
	require.Contains(t, stderr, "not a directory")
}
