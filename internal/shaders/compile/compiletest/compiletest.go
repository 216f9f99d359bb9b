// Package compiletest finds the tools of shaders for tests.
package compiletest

import (
	"os"
	"testing"

	"github.com/flashvk/flashvk/internal/shaders/compile"
)

// Tool returns the path of a tool as compile.Find does. Without it the test is skipped, or fails if it
// is needed or FLASHVK_REQUIRE_TOOLS is set, which `make` does.
func Tool(t testing.TB, root, tool string, needed bool) string {
	t.Helper()
	needed = needed || os.Getenv("FLASHVK_REQUIRE_TOOLS") != ""
	path, err := compile.Find(root, tool, needed)
	switch {
	case err != nil && needed:
		t.Fatal(err)
	case err != nil:
		t.Skip(err)
	}
	return path
}
