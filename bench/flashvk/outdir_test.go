package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/bench/compare"
)

// TestBenchOut says that --out writes a report and the samples behind it.
func TestBenchOut(t *testing.T) {
	caps, dev := device(t)
	dir := filepath.Join(t.TempDir(), "a", "b")
	code, stdout, stderr := flashvk(small(dev, "--impl=scalar", "--out", dir)...)
	require.Zero(t, code, stderr)
	require.Contains(t, stdout, "  pass ")
	require.Equal(t, "flashvk: wrote "+filepath.Join(dir, "report.html")+"\n", stderr)
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return string(text)
	}
	html := read("report.html")
	for _, want := range []string{"--impl=scalar", "<svg ", "subgroup  ", strings.Join(strings.Fields(caps.Name), " "), `<td class="text">pass</td>`} {
		require.Contains(t, html, want)
	}
	lines, err := compare.Read(strings.NewReader(read("results.benchfmt")), "x", "sec/op")
	require.NoError(t, err)
	require.Len(t, lines.Order, 1)
	require.Contains(t, read("report.md"), "| scalar | ")
	require.Contains(t, read("results.json"), `"device_ns_samples"`)
	require.Equal(t, 2, strings.Count(read("results.csv"), "\n"))
	require.Contains(t, read("rates.svg"), "</svg>")
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 7, "six, and the list of them")

	// A later report into the folder takes the charts of the earlier away, and nothing else.
	mine := filepath.Join(dir, "latency.svg")
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rates.svg"), nil, 0o600))
	before := filepath.Join(dir, "old-7.svg")
	require.NoError(t, os.WriteFile(before, nil, 0o600))
	list, err := os.OpenFile(filepath.Join(dir, contents), os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = list.WriteString("old-7.svg\n../a\ngone.svg\n")
	require.NoError(t, errors.Join(err, list.Close()))
	code, _, stderr = flashvk(small(dev, "--impl=scalar", "--out", dir)...)
	require.Zero(t, code, stderr)
	require.NoFileExists(t, before)
	require.FileExists(t, mine)
	require.DirExists(t, filepath.Dir(dir))
	require.Contains(t, read("rates.svg"), "</svg>")
	require.NotContains(t, read(contents), "old-7")
	require.Contains(t, read(contents), "rates.svg\n")

	// A folder that cannot be made is noticed before anything is measured.
	code, stdout, stderr = flashvk(small(dev, "--out", filepath.Join(dir, "results.csv", "x"))...)
	require.Equal(t, 1, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "not a directory")
	require.Equal(t, 1, strings.Count(stderr, "\n"))
}

// TestReportOfKernel: reports of a suite of another kernel, one of them of a kernel with a
// size that is called out.
func TestReportOfKernel(t *testing.T) {
	_, dev := device(t)
	for kernel, flag := range map[string]string{"norm": "--out", "mlp": "--report"} {
		dir := t.TempDir()
		code, stdout, stderr := flashvk("bench", kernel, dev, "--suite=training", "--small", "--impl=auto", "--count=1", "--iters=1", "--wide", flag, dir)
		require.Zero(t, code, stderr)
		require.Contains(t, stdout, "suite    training: the shapes of a training step\n")
		require.Regexp(t, ` auto +rate +traffic `, stdout)
		html, err := os.ReadFile(filepath.Join(dir, "report.html"))
		require.NoError(t, err)
		require.Contains(t, string(html), map[string]string{"norm": "Layer normalization on ", "mlp": "A two-layer perceptron with SiLU on "}[kernel])
		lines, err := os.ReadFile(filepath.Join(dir, "results.benchfmt"))
		require.NoError(t, err)
		require.Contains(t, string(lines), "\nsuite: training-small\n")
	}
}

func TestCommandLine(t *testing.T) {
	require.Equal(t, `flashvk bench --peer 'a=sh -c "x"' '' 'it'\''s' --n=1,2`, commandLine([]string{"bench", "--peer", `a=sh -c "x"`, "", "it's", "--n=1,2"}))
}
