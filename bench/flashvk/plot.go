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
	"github.com/flashvk/flashvk/internal/files"
)

func newPlot(a *app) *cobra.Command {
	var out, baseline string
	cmd := &cobra.Command{
		Use:   "plot FILE",
		Short: "Draw the results of a sweep",
		Long: `Draws latency, speedup and rate of the results in a CSV file against the size that
differs (for attention the sequence length), as SVG: one below the other in --out FILE.svg,
or each in a file of its own in the folder --out DIR. It prints the names of the files. The
CSV file is one of flashvk sweep, of bench --format csv, or results.csv of bench --out.
Results that differ in more than one size are divided: each part that differs in one has
charts numbered -1, -2 and so on, and the rest are bars in rates.svg, as with bench --out.`,
		Example: `  flashvk plot results.csv --out plots
  flashvk plot results.csv --out results.svg --baseline torch:flash`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("plot needs one file with results, not %d", len(args))
			}
			return nil
		},
	}
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
