package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/compare"
	"github.com/flashvk/flashvk/internal/bench/kernels"
)

func newBenchCompare(a *app) *cobra.Command {
	var o output
	unit, limit, missing := "sec/op", 5.0, false
	cmd := &cobra.Command{
		Use:   "compare OLD NEW",
		Short: "Compare two files of benchmark lines",
		Long: `Compares two files of bench --format benchfmt, or any others in the Go benchmark format:
medians, 95 % confidence intervals, and whether the difference is significant
(Mann-Whitney U test, p < 0.05; it needs at least four samples of each, ten are better).

The exit status is 1 if a benchmark became worse, significantly and by more than
--max-slowdown percent. It is also 1 if a benchmark of OLD is missing in NEW, since a
path that became wrong is not timed; --missing allows that.`,
		Example: `  flashvk bench compare old.txt new.txt
  flashvk bench compare --max-slowdown 2 --format markdown old.txt new.txt
  flashvk bench compare --unit fresh-wall-sec/op old.txt new.txt`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("bench compare needs two files, OLD and NEW, not %d", len(args))
			}
			return nil
		},
	}
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
