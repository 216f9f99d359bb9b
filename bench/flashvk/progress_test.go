package main

import (
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// TestLabel: what stands before a progress bar is of one width, so that the bar stands still.
func TestLabel(t *testing.T) {
	for _, what := range []string{"", "samples", "case 3 of 12: checking coopmat2", "case 112 of 1200: checking a path with a long name", "max|Δ| ±\n"} {
		require.Equal(t, labelWidth, utf8.RuneCountInString(label(what)), what)
		require.NotContains(t, label(what), "\n")
	}
	// That of a training is whole.
	for _, bytes := range []int64{1.5e6, 141e9} {
		what := trainLabel(-2.34567, 1069234, bytes)
		require.Contains(t, label(what), what)
		require.Contains(t, what, "loss -2.3457, 1.069 M tokens/s, ")
	}
}
