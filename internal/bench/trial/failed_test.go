package trial

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/vk"
)

// TestFailedBefore checks problems that were wrong on a GPU. For a CPU device it only parses them:
// their kernels take minutes to compile there, and were right.
func TestFailedBefore(t *testing.T) {
	text, err := os.ReadFile("testdata/failed.txt")
	require.NoError(t, err)
	d := openPoisoned(t)
	r := newTestRunner(t, d)
	n := 0
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		k, p, err := Decode(line)
		require.NoError(t, err)
		n++
		t.Run(k.Name, func(t *testing.T) {
			if d.Caps().Type == vk.CPU {
				t.Skip("for GPUs")
			}
			if err := p.Supports(d.Caps()); err != nil {
				t.Skip(err)
			}
			for range 3 {
				require.NoError(t, p.Check(context.Background(), r), line)
			}
		})
	}
	require.Greater(t, n, 15)
}
