package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/chart"
	"github.com/flashvk/flashvk/internal/bench/compare"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/files"
)

func newBenchCompare(a *app) *cobra.Command {
	var o output
	unit, limit, missing := "sec/op", 5.0, false
	cmd := &cobra.Command{Use: "compare OLD NEW", Args: exactly(2, "two files, OLD and NEW")}
	return a.command(cmd, func(f *pflag.FlagSet) {
		f.Var(value[float64]{Target: &limit, Parse: kernels.ParseFloat, Kind: "PERCENT"}, "max-slowdown", "by how much the median may become worse before that is a failure (default 5)")
		f.BoolVar(&missing, "missing", false, "benchmarks of OLD may be missing in NEW")
		f.StringVar(&unit, "unit", "sec/op", "what is compared: sec/op, replay-wall-sec/op, fresh-wall-sec/op, FLOP/s, B/s, max-abs-error")
		o.addPrinted(f, "or markdown", bench.Table, bench.Markdown)
	}, func(context.Context) error {
		if !(limit >= 0) {
			return usagef("--max-slowdown %v is not a percentage from 0", limit)
		}
		args := cmd.Flags().Args()
		report, err := compareFiles(args[0], args[1], unit)
		if err != nil {
			return err
		}
		if err := bench.WriteSheet(a.stdout, report.Sheet(limit), o.format, o.wide); err != nil {
			return err
		}
		if worse := report.Worse(limit); len(worse) > 0 {
			return fmt.Errorf("%d of %d benchmarks became worse by more than %g %%, the worst by %.1f %%: %s",
				len(worse), len(report.Changes), limit, worse[0].Worse, worse[0].Name)
		}
		if n := len(report.OnlyOld); n > 0 && !missing {
			return fmt.Errorf("%d of %d benchmarks of %s are not in %s, the first: %s (--missing lets that pass)", n, n+len(report.Changes), args[0], args[1], report.OnlyOld[0])
		}
		return nil
	})
}

func compareFiles(before, after, unit string) (*compare.Report, error) {
	var files [2]*compare.File
	for i, path := range []string{before, after} {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if files[i], err = compare.Read(f, path, unit); err != nil {
			return nil, err
		}
	}
	return compare.Compare(files[0], files[1], unit)
}

func newPlot(a *app) *cobra.Command {
	var out, baseline string
	cmd := &cobra.Command{Use: "plot FILE", Args: exactly(1, "one file with results")}
	return a.command(cmd, func(f *pflag.FlagSet) {
		fileVar(f, &out, "out", "file of the drawings, FILE.svg, or a folder for them, made if needed")
		f.StringVar(&baseline, "baseline", "", "implementation that speedups are relative to (default unfused, or the first if there is none)")
	}, func(context.Context) error {
		drawings, err := readDrawings(cmd.Flags().Arg(0), baseline)
		if err != nil {
			return err
		}
		names, err := writeDrawings(out, drawings)
		for _, n := range names {
			fmt.Fprintln(a.stdout, n)
		}
		return err
	})
}

func readDrawings(path, baseline string) ([]bench.Drawing, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	records, err := bench.ReadRecords(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	drawings, err := bench.Plots(records, baseline)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return drawings, nil
}

// writeDrawings writes the drawings to a file, or each to its own in a folder, and returns the files.
func writeDrawings(out string, drawings []bench.Drawing) (names []string, err error) {
	charts := map[string][]*chart.Chart{}
	for i := range drawings {
		path := out
		if filepath.Ext(out) != ".svg" {
			path = filepath.Join(out, drawings[i].Name+".svg")
		}
		if charts[path] == nil {
			names = append(names, path)
		}
		charts[path] = append(charts[path], &drawings[i].Chart)
	}
	for i, path := range names {
		var b bytes.Buffer
		if err := chart.SVG(&b, charts[path]...); err != nil {
			return names[:i], err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return names[:i], err
		}
		if err := files.Write(path, b.Bytes()); err != nil {
			return names[:i], err
		}
	}
	return names, nil
}
