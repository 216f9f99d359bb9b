package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// sweepArgs are the flags of a short sweep.
func sweepArgs(dev, csv string, more ...string) []string {
	return append([]string{"sweep", dev, "--min-len=8", "--max-len=25", "--step=8", "--heads=2", "--headdim=16", "--impl=scalar,unfused", "--count=2", "--csv", csv}, more...)
}

// keys returns lengths and implementations of a sweep's file.
func keys(t *testing.T, path string) (list []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	require.NoError(t, err)
	for _, row := range rows {
		cells := map[string]string{}
		for i, name := range rows[0] {
			cells[name] = row[i]
		}
		list = append(list, cells["seq_q"]+" "+cells["impl"]+" "+cells["status"])
	}
	return list
}

// TestSweep says that a sweep that is interrupted and started again makes the
// same file as one that is not, and that plot draws it.
func TestSweep(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	whole, parts := filepath.Join(dir, "whole.csv"), filepath.Join(dir, "parts.csv")
	code, stdout, stderr := flashvk(sweepArgs(dev, whole)...)
	require.Zero(t, code, stderr)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "whole.csv: measured 3 lengths, kept 0 of an earlier run\n")
	want := []string{"seq_q impl status", "8 scalar ok", "8 unfused ok", "16 scalar ok", "16 unfused ok", "24 scalar ok", "24 unfused ok"}
	require.Equal(t, want, keys(t, whole))

	// Each run is cancelled later than the one before.
	interruptions := 0
	for n := 5; ; n *= 2 {
		var out, errs bytes.Buffer
		code := run(&countdown{context.Background(), n}, sweepArgs(dev, parts), nil, &out, &errs)
		if code == 0 {
			break
		}
		interruptions++
		require.Equal(t, 1, code)
		require.True(t, strings.HasSuffix(errs.String(), "flashvk: interrupted\n"), errs.String())
		require.Less(t, n, 5000)
	}
	require.Greater(t, interruptions, 2)
	require.Equal(t, want, keys(t, parts))
	code, _, stderr = flashvk(sweepArgs(dev, parts)...)
	require.Zero(t, code)
	require.Contains(t, stderr, "measured 0 lengths, kept 3 of an earlier run")

	plots := filepath.Join(dir, "a", "plots")
	code, stdout, stderr = flashvk("plot", "--csv", parts, "--out", plots)
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	files, err := filepath.Glob(filepath.Join(plots, "*"))
	require.NoError(t, err)
	require.Len(t, files, 6)
	for _, f := range files {
		require.Contains(t, stdout, f+"\n")
	}
	svg, err := os.ReadFile(filepath.Join(plots, "speedup.svg"))
	require.NoError(t, err)
	require.Contains(t, string(svg), "Speedup over unfused")

	// A path that is asked for later is added, one that is wrong or missing is a failure.
	code, _, stderr = flashvk(append(sweepArgs(dev, parts), "--impl=scalar,auto", "--peer=p="+answerOnly(t))...)
	require.Zero(t, code, stderr)
	require.Equal(t, append(want, "8 auto ok", "8 p:x ok", "16 auto ok", "16 p:x ok", "24 auto ok", "24 p:x ok"), keys(t, parts))
	code, _, stderr = flashvk(append(sweepArgs(dev, parts), "--headdim=8")...)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, `line 2 has head_dim="16", this sweep "8"`)
	code, _, stderr = flashvk(append(sweepArgs(dev, parts), "--backward")...)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, `line 2 has kernel="attention_fwd", this sweep "attention_bwd"`)
	gradients := filepath.Join(dir, "gradients.csv")
	code, _, stderr = flashvk(append(sweepArgs(dev, gradients), "--backward", "--impl=auto", "--max-len=16")...)
	require.Zero(t, code, stderr)
	require.Equal(t, []string{"seq_q impl status", "8 auto ok", "16 auto ok"}, keys(t, gradients))
	code, _, stderr = flashvk("plot", "--csv", gradients, "--out", plots)
	require.Zero(t, code, stderr)
	svg, err = os.ReadFile(filepath.Join(plots, "latency.svg"))
	require.NoError(t, err)
	require.Contains(t, string(svg), "Latency of attention backward")

	code, stdout, stderr = flashvk("plot", "--csv", parts, "--out", plots, "--baseline=nothing")
	require.Equal(t, 1, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "parts.csv: the baseline nothing is not one of scalar, unfused, auto, p:x\n")
	code, _, stderr = flashvk("plot", "--csv", parts, "--out", filepath.Join(parts, "plots"))
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "not a directory")
}
