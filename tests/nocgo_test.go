package tests

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWithoutCgo builds without cgo: what comes is one line that says what to set.
func TestWithoutCgo(t *testing.T) {
	hasSources(t)
	for _, target := range []string{"CGO_ENABLED=0", "GOARCH=riscv64"} { // another machine's: cgo is off
		for _, name := range []string{"attention", "bench/flashvk"} {
			c := exec.Command("go", "build", "-o", os.DevNull, "../"+name)
			c.Env = append(os.Environ(), "CGO_ENABLED=", target)
			said, err := c.CombinedOutput()
			require.Error(t, err, target)
			require.Contains(t, string(said), "set CGO_ENABLED=1", target)
			require.Equal(t, 1, strings.Count(string(said), "\n"), "%s: %s", target, said)
		}
	}
}
