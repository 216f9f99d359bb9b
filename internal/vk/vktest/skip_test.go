package vktest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSkipExamples: the examples are left out beside what the caller leaves out.
func TestSkipExamples(t *testing.T) {
	require.Equal(t, "^Example", skipExamples(""))
	require.Equal(t, "^Example|^TestX$", skipExamples("^TestX$"))
}
