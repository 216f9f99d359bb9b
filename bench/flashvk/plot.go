package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/files"
)

func newPlot(a *app) *cobra.Command {
	var csv, out, baseline string
	cmd := &cobra.Command{
		Use:   "plot",
		Short: "Draw the results of a sweep",
		Long: `Draws latency, speedup and rate of the results in a CSV file against the size that
differs (for attention the sequence length). It writes latency, speedup and rate as .png
and .svg, and prints the names of the files. The CSV file is one of flashvk sweep, of
bench --format csv, or results.csv of bench --out. Results that differ in more than one
size are divided: each part that differs in one has charts numbered -1, -2 and so on, and
the rest are bars in rates .png and .svg, as with bench --out.`,
		Example: `  flashvk plot --csv results.csv --out plots
  flashvk plot --csv results.csv --out plots --baseline torch:flash
  flashvk plot --csv results/results.csv --out plots`,
		Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case csv == "":
				return usagef("plot needs --csv FILE")
			case out == "":
				return usagef("plot needs --out DIR")
			}
			drawings, err := readDrawings(csv, baseline)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(out, 0o777); err != nil {
				return err
			}
			names, err := writeDrawings(out, drawings)
			for _, n := range names {
				fmt.Fprintln(a.stdout, n)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&csv, "csv", "", "file with the results")
	f.StringVar(&out, "out", "", "folder for the drawings, made if needed")
	f.StringVar(&baseline, "baseline", "", "implementation that speedups are relative to (default unfused, or the first if there is none)")
	return cmd
}

func readDrawings(path, baseline string) ([]bench.Drawing, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	records, err := bench.ReadRecords(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	drawings, err := bench.Plots(records, baseline)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return drawings, nil
}

// writeDrawings writes each drawing as PNG and SVG and returns the files.
func writeDrawings(dir string, drawings []bench.Drawing) (names []string, err error) {
	for _, d := range drawings {
		for _, form := range []struct {
			ending string
			write  func(io.Writer) error
		}{{".png", d.PNG}, {".svg", d.SVG}} {
			var b bytes.Buffer
			if err := form.write(&b); err != nil {
				return names, err
			}
			path := filepath.Join(dir, d.Name+form.ending)
			if err := files.Write(path, b.Bytes()); err != nil {
				return names, err
			}
			names = append(names, path)
		}
	}
	return names, nil
}
