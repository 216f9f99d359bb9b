package main

import (
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra/doc"
	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench"
)

var man = flag.String("man", "", "write the manual pages into this folder")

// TestMan makes a manual page of each command from its help, for tools/release with -man.
func TestMan(t *testing.T) {
	dir := cmp.Or(*man, t.TempDir())
	root := program()
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Manual: "flashvk", Source: bench.ReadBuildInfo().Version}
	require.NoError(t, doc.GenManTree(root, header, dir))
	for _, c := range allCommands(root) {
		page, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"))
		require.NoError(t, err)
		require.Contains(t, string(page), c.Short)
	}
}
