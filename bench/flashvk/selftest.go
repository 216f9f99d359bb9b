package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/bench/selftest"
	"github.com/flashvk/flashvk/vk"
)

// selftestFormats are those that selftest writes.
var selftestFormats = []bench.Format{bench.Table, bench.Markdown}

// selftestHang is after how long a call is given up. The longest takes
// milliseconds on a GPU.
const selftestHang = 20 * time.Second

func newSelftest(a *app) *cobra.Command {
	impls, format, device := attention.Impls(), bench.Table, ""
	budget := 100 * time.Second
	random := &randomFlags{}
	cmd := &cobra.Command{
		Use:   "selftest",
		Short: "Test every path on this device",
		Long: `Runs the conformance suite, forward and backward, on every path of the device, the
cheap cases first, checks and times loops of matrix products, multiply-adds and copies, and gives a
verdict for each path: right or wrong, and whether its matrices are suspiciously
slow, as they are where a driver emulates them.

With --random it checks random problems of all kernels instead, drawn over all that the
library accepts: forward and backward passes against float64 references, each twice, with
NaN in all memory that a kernel might read by mistake, shared memory and registers
included. A problem that is wrong is shrunk to a small one; --problem repeats it.

The exit status is 1 if a path or a problem is wrong, hangs or loses the device.`,
		Example: `  flashvk selftest
  flashvk selftest --random 1000 --seed 7 --kernel attention,gemm
  flashvk selftest --impl coopmat --budget 30s --format markdown`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !slices.Contains(selftestFormats, format):
				return usagef("--format %s is not one of %s", format, bench.FormatNames(selftestFormats))
			case slices.Contains(impls, attention.Auto):
				return usagef("--impl auto is not a path to test")
			case budget <= 0:
				return usagef("--budget %v is not positive", budget)
			}
			if err := random.check(cmd.Flags()); err != nil {
				return err
			}
			if err := random.useModules(); err != nil {
				return err
			}
			switch {
			case random.problem != "":
				return runProblem(cmd.Context(), a, random.problem, device)
			case random.problems > 0:
				var some []attention.Impl
				if cmd.Flags().Changed("impl") {
					some = impls
				}
				_, err := runRandom(cmd.Context(), a, random, device, some)
				return err
			}
			o := selftest.Options{Impls: impls, Budget: budget, Hang: selftestHang, Open: func() (*vk.Device, error) { return openDevice(device) }}
			return runSelftest(cmd.Context(), a, o, format)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.Var(value[[]attention.Impl]{&impls, parseImpls, "PATHS"}, "impl", "paths, a comma list of "+implNames()+" but auto (default all)")
	f.DurationVar(&budget, "budget", budget, "time for all of it; what has begun comes on top")
	f.Var(value[bench.Format]{&format, parseFormat, "FORMAT"}, "format", "table (default) or markdown")
	random.add(f)
	deviceVar(f, &device)
	return cmd
}

func runSelftest(ctx context.Context, a *app, o selftest.Options, format bench.Format) error {
	d, err := o.Open() // for its name, before anything is run on it
	if err != nil {
		return err
	}
	env := environment(d.Caps())
	if err := d.Close(); err != nil {
		return err
	}
	bar := newProgress(a.stderr)
	report, err := selftest.Run(ctx, env, o, bar.step)
	bar.finish()
	if err != nil && !errors.Is(err, selftest.ErrHung) {
		return err
	}
	if err := bench.WriteSheet(a.stdout, report.Sheet(), format); err != nil {
		return err
	}
	if err != nil {
		return err
	}
	if failed := report.Failed(); len(failed) > 0 {
		p := failed[0]
		return fmt.Errorf("%d of %d paths must not be used, the first %v %v for %v: %s: %s", len(failed), len(report.Paths), p.Impl, p.Pass, p.DType, p.Verdict, p.Why)
	}
	return nil
}
