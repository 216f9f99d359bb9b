package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestProfileAttention(t *testing.T) {
	_, dev := device(t)
	trace := filepath.Join(t.TempDir(), "trace.json")
	args := []string{"profile", "attention", dev, "--batch=1", "--heads=2", "--seqlen=40", "--headdim=16", "--causal", "--impl=unfused", "--count=2", "--wide"}
	code, stdout, stderr := flashvk(append(args, "--trace", trace)...)
	require.Zero(t, code, stderr)
	require.Equal(t, "flashvk: wrote "+trace+"\n", stderr)
	for _, want := range []string{"attention_unfused_scores.f16", "attention_unfused_softmax", "attention_unfused_values.f16", "\n   all ", "fma f32", "copy", "causal (bottom-right)"} {
		require.Contains(t, stdout, want)
	}
	text, err := os.ReadFile(trace)
	require.NoError(t, err)
	require.Contains(t, string(text), `"traceEvents":[`)
	code, stdout, _ = flashvk(append(args, "--format=markdown")...)
	require.Zero(t, code)
	require.Contains(t, stdout, "| # | kernel | begin | time |")

	code, stdout, stderr = flashvk(append(args, "--trace", filepath.Join(trace, "x"))...)
	require.Equal(t, 1, code)
	require.NotEmpty(t, stdout)
	require.Contains(t, stderr, "not a directory")
}

// TestProfileKernels profiles a pass of several dispatches, with a timeline, and the cases
// of a suite.
func TestProfileKernels(t *testing.T) {
	_, dev := device(t)
	trace := filepath.Join(t.TempDir(), "trace.json")
	code, stdout, stderr := flashvk("profile", "grouped", dev, "--tokens=20", "--heads=2", "--hidden=24", "--impl=scalar", "--backward", "--count=1", "--trace", trace)
	require.Zero(t, code, stderr)
	require.Equal(t, "flashvk: wrote "+trace+"\n", stderr)
	for _, want := range []string{"\n1  gemm_pack ", "\n2  gemm_scalar.f", "  2 of 20x24x32 nn float", "\n   all ", "kernels  the same by kernel", "grouped backward, float16: tokens 20, heads 2, in ", "fma f32"} {
		require.Contains(t, stdout, want)
	}
	text, err := os.ReadFile(trace)
	require.NoError(t, err)
	for _, want := range []string{`"does":"2 of 20x24x32 nn float`, `"problem":"dtype=float`, `"name":"grouped backward, float16: tokens 20, heads 2`} {
		require.Contains(t, string(text), want)
	}

	code, stdout, stderr = flashvk("profile", "gmm", dev, "--suite=training", "--small", "--both", "--count=1", "--format=markdown")
	require.Zero(t, code, stderr)
	require.Equal(t, 2, strings.Count(stdout, "| # | kernel | does | begin | time |"))
	require.Equal(t, 2, strings.Count(stdout, "| 2 | gmm\\_bwd.f32 | "))

	code, stdout, stderr = flashvk("profile", "mlp", dev, "--impl=fused", "--dtype=float32", "--backward")
	require.Equal(t, 1, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "the backward pass has no such kernel")
}
