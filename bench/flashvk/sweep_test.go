package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
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
	require.Contains(t, stderr, "whole.csv: measured 3 problems, kept 0 of an earlier run\n")
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
	require.Contains(t, stderr, "measured 0 problems, kept 3 of an earlier run")

	plots := filepath.Join(dir, "a", "plots")
	code, stdout, stderr = flashvk("plot", parts, "--out", plots)
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	files, err := filepath.Glob(filepath.Join(plots, "*"))
	require.NoError(t, err)
	require.Len(t, files, 3)
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
	code, _, stderr = flashvk(append(sweepArgs(dev, gradients), "--backward", "--impl=auto")...)
	require.Zero(t, code, stderr)
	require.Equal(t, []string{"seq_q impl status", "8 auto ok", "16 auto ok", "24 auto ok"}, keys(t, gradients))
	code, _, stderr = flashvk("plot", gradients, "--out", plots)
	require.Zero(t, code, stderr)
	svg, err = os.ReadFile(filepath.Join(plots, "latency.svg"))
	require.NoError(t, err)
	require.Contains(t, string(svg), "Latency of attention backward")

	code, stdout, stderr = flashvk("plot", parts, "--out", plots, "--baseline=nothing")
	require.Equal(t, 1, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "parts.csv: the baseline nothing is not one of scalar, unfused, auto, p:x\n")
	code, _, stderr = flashvk("plot", parts, "--out", filepath.Join(parts, "plots"))
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "not a directory")
}

// TestSweepKernel: a sweep over two sizes of a kernel goes on with more of them, and plot draws it.
func TestSweepKernel(t *testing.T) {
	_, dev := device(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "norm.csv")
	args := func(rows string, more ...string) []string {
		return append([]string{"sweep", "norm", dev, "--rows=" + rows, "--cols=32", "--dtype=float32", "--count=1", "--csv", file}, more...)
	}
	code, stdout, stderr := flashvk(args("4,8")...)
	require.Zero(t, code, stderr)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "norm.csv: measured 2 problems, kept 0 of an earlier run\n")
	code, _, stderr = flashvk(args("4..64x2")...)
	require.Zero(t, code, stderr)
	require.Contains(t, stderr, "measured 3 problems, kept 2 of an earlier run\n")
	for more, want := range map[string]string{
		"--cols=40":  `line 2 has cols="32", this sweep "40"`,
		"--rms":      `line 2 has kind="LayerNorm", this sweep "RMSNorm"`,
		"--backward": `line 2 has kernel="norm_fwd", this sweep "norm_bwd"`,
	} {
		code, _, stderr = flashvk(args("4..64x2", more)...)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, want)
	}
	code, stdout, stderr = flashvk("plot", file, "--out", dir)
	require.Zero(t, code, stderr)
	require.Equal(t, 3, strings.Count(stdout, "\n"))
	svg, err := os.ReadFile(filepath.Join(dir, "rate.svg"))
	require.NoError(t, err)
	for _, want := range []string{"Rate of norm forward", ">rows<", "cols 32", "kind LayerNorm"} {
		require.Contains(t, string(svg), want)
	}

	// Two sizes that differ, two values each, are no lines: the rates are bars.
	file = filepath.Join(dir, "gemm.csv")
	code, _, stderr = flashvk("sweep", "gemm", dev, "--m=8,16", "--n=8..16+8", "--k=8", "--dtype=float32", "--residual=both", "--count=1", "--impl=scalar", "--csv", file)
	require.Zero(t, code, stderr)
	require.Contains(t, stderr, "measured 8 problems")
	code, stdout, stderr = flashvk("plot", file, "--out", dir)
	require.Zero(t, code, stderr)
	require.Equal(t, filepath.Join(dir, "rates.svg")+"\n", stdout)
}

// TestGrid: what lists and ranges mean.
func TestGrid(t *testing.T) {
	for text, want := range map[string]string{
		"7": "[7]", "8..8+1": "[8]", "1..10+4": "[1 5 9]", "3..100x5": "[3 15 75]", "0..2+1": "[0 1 2]",
		"9223372036854775807..9223372036854775807x2": "[9223372036854775807]",
		"1..2":        "not FIRST..LAST+STEP or FIRST..LASTxFACTOR",
		"1..a+2":      "not FIRST..LAST+STEP or FIRST..LASTxFACTOR, of integers",
		"5..4+1":      "not a range: 4 is less than 5",
		"5..9x1":      "not a range that grows",
		"0..9x2":      "not a range that grows",
		"5..9+-1":     "not a range that grows",
		"1..100000+1": "more than 10000 numbers",
	} {
		list, err := expand(text)
		got := fmt.Sprint(list)
		if err != nil {
			got = err.Error()
		}
		require.Equal(t, want, got, text)
	}
	b := &sweep{kernelProblem: newKernelProblem(find("gemm"))}
	f := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.SortFlags = false
	b.addGrid(f)
	require.NoError(t, f.Parse([]string{"--m=4,8..16x2", "--dtype=float16,float32", "--n=3"}))
	ops, _, err := b.ops(true)
	require.NoError(t, err)
	var got []string
	for _, op := range ops {
		got = append(got, op.Describe())
	}
	require.Equal(t, []string{
		"float16: m 4, n 3, k 128, nn", "float32: m 4, n 3, k 128, nn", "float16: m 8, n 3, k 128, nn", "float32: m 8, n 3, k 128, nn", "float16: m 16, n 3, k 128, nn", "float32: m 16, n 3, k 128, nn",
	}, got)
	require.ErrorContains(t, f.Parse([]string{"--m=4,8..x2"}), `"8..x2" is not FIRST`)
	require.ErrorContains(t, f.Parse([]string{"--m=4,4"}), `"4" occurs twice`)
	require.NoError(t, f.Parse([]string{"--m=1..5000+1", "--n=1,2,3"}))
	_, _, err = b.ops(true)
	require.ErrorContains(t, err, "more than 10000")
}
