package main

import (
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/safetensors"
)

// TestExample: the losses of the program fall, its file is a state, and the model with its training has fewer than 100 lines.
func TestExample(t *testing.T) {
	t.Setenv("GALLIVM_PERF", "") // 300 steps take lavapipe longer than optimizing their kernels
	vktest.Open(t)               // skips
	source, err := os.ReadFile("main.go")
	require.NoError(t, err)
	require.Less(t, strings.Count(string(source), "\n"), 100)
	file, args := filepath.Join(t.TempDir(), "waves.safetensors"), os.Args
	os.Args = []string{"train", file}
	defer func() { os.Args = args }()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	stdout := os.Stdout
	os.Stdout = w
	main()
	os.Stdout = stdout
	w.Close()
	text, err := io.ReadAll(r)
	require.NoError(t, err)
	var losses []float64
	for _, m := range regexp.MustCompile(`loss (\S+)`).FindAllStringSubmatch(string(text), -1) {
		loss, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		losses = append(losses, loss)
	}
	require.Len(t, losses, 6, string(text))
	require.Less(t, losses[5], losses[0]-0.5)
	m := regexp.MustCompile(`\ny is (\S+) at \S+, predicted (\S+) ± (\S+)\n`).FindStringSubmatch(string(text))
	require.NotNil(t, m, string(text))
	var numbers [3]float64
	for i := range numbers {
		numbers[i], err = strconv.ParseFloat(m[1+i], 64)
		require.NoError(t, err)
	}
	require.InDelta(t, numbers[0], numbers[1], 4*numbers[2])
	require.Less(t, numbers[2], 0.7, "it knows more than that a sine wave is between -1 and 1")
	f, err := safetensors.Open(file)
	require.NoError(t, err)
	defer f.Close()
	require.Equal(t, "300", f.Metadata["steps"])
}
