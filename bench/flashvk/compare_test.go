package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/files"
)

// TestBenchCompare says that a slowdown beyond the limit is status 1, after the
// table, and everything else 0.
func TestBenchCompare(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, ns float64) string {
		text := ""
		for i := range 10 {
			text += fmt.Sprintf("BenchmarkAttentionFwd/impl=scalar 5 %v ns/op\n", ns+float64(i))
		}
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	before, after := write("old.txt", 1000), write("new.txt", 1100)
	code, stdout, stderr := flashvk("bench", "compare", before, after)
	require.Equal(t, 1, code)
	require.Contains(t, stdout, "WORSE")
	require.Equal(t, "flashvk: 1 of 1 benchmarks became worse by more than 5 %, the worst by 10.0 %: AttentionFwd/impl=scalar\n", stderr)
	for _, args := range [][]string{{before, after, "--max-slowdown=11"}, {after, before}, {before, before, "--max-slowdown=0"}} {
		code, stdout, stderr = flashvk(append([]string{"bench", "compare", "--format=markdown"}, args...)...)
		require.Zero(t, code, stderr)
		require.Empty(t, stderr)
		require.Contains(t, stdout, "\n| AttentionFwd/impl=scalar | ")
		require.NotContains(t, stdout, "WORSE")
	}
	more := filepath.Join(dir, "more.txt")
	text, err := os.ReadFile(before)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(more, append(text, "BenchmarkAttentionFwd/impl=coopmat 5 700 ns/op\n"...), 0o600))
	code, _, stderr = flashvk("bench", "compare", more, before)
	require.Equal(t, 1, code)
	require.Equal(t, "flashvk: 1 of 2 benchmarks of "+more+" are not in "+before+", the first: AttentionFwd/impl=coopmat (--missing lets that pass)\n", stderr)
	for _, args := range [][]string{{more, before, "--missing"}, {before, more}} {
		code, _, stderr = flashvk(append([]string{"bench", "compare"}, args...)...)
		require.Zero(t, code, stderr)
	}
	endless := filepath.Join(dir, "endless")
	line := []byte(strings.Repeat(" ", 1023) + "\n")
	require.NoError(t, os.WriteFile(endless, bytes.Repeat(line, files.MaxResults/len(line)+1), 0o600))
	for args, want := range map[string]string{
		"":                                   "bench compare needs two files, OLD and NEW, not 0",
		before:                               "bench compare needs two files, OLD and NEW, not 1",
		"--max-slowdown=-1 " + "a b":         "--max-slowdown -1 is not a percentage from 0",
		"--max-slowdown=nan a b":             "--max-slowdown NaN is not a percentage from 0",
		"--max-slowdown=x a b":               `invalid argument "x" for "--max-slowdown" flag: not a number`,
		"--format=csv a b":                   `invalid argument "csv" for "--format" flag: not one of table, markdown`,
		"/nowhere/a " + before:               "open /nowhere/a: no such file or directory",
		before + " /dev/null":                "/dev/null: there is no benchmark line",
		"/dev/zero " + before:                "/dev/zero: a line has more than 65536 bytes: it is no file of benchmark lines",
		before + " " + endless:               ": it has more than 67108864 bytes, the most of a file of results",
		"--unit=B/s " + before + " " + after: "old.txt: no benchmark line has the unit B/s",
	} {
		code, stdout, stderr := flashvk(append([]string{"bench", "compare"}, strings.Fields(args)...)...)
		require.Equal(t, 1+btoi(!strings.Contains(args, "/") || !strings.Contains(args, " ")), code, args)
		require.Empty(t, stdout)
		require.Contains(t, stderr, want)
		require.Equal(t, 1, strings.Count(stderr, "\n"))
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
