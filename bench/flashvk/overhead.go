package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
)

// benchOverhead holds the flags of bench overhead.
type benchOverhead struct {
	set    *pflag.FlagSet
	dtype  dtype.DType
	count  int
	impls  []attention.Impl
	format bench.Format
	device string
	tuning tuningFlags
}

// overheadFormats are those that bench overhead writes.
var overheadFormats = []bench.Format{bench.Table, bench.Markdown, bench.Benchfmt}

func newBenchOverhead(a *app) *cobra.Command {
	o := benchOverhead{format: bench.Table, impls: attention.Impls(), dtype: dtype.Float16, count: 10}
	cmd := &cobra.Command{
		Use:   "overhead",
		Short: "Measure what a call costs the host",
		Long: `Measures what a call of attention costs beside the work of the device, on a
problem so small that this hardly counts: recording a call, a call from nothing,
submitting a recorded one, waiting for it, and replaying a recording of many.`,
		Example: `  flashvk bench overhead
  flashvk bench overhead --impl coopmat2,scalar --count 20 --format benchfmt > overhead.txt`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	o.set = f
	f.Var(value[dtype.DType]{&o.dtype, parseDType, "TYPE"}, "dtype", "float16 (default), bfloat16 or float32")
	f.Var(value[[]attention.Impl]{&o.impls, parseImpls, "PATHS"}, "impl", "paths, a comma list of "+implNames()+" (default all but auto)")
	intVar(f, &o.count, "count", "samples of each path (default 10)")
	f.Var(value[bench.Format]{&o.format, parseFormat, "FORMAT"}, "format", "table (default), markdown, or benchfmt, for bench compare")
	deviceVar(f, &o.device)
	o.tuning.add(f)
	return cmd
}

func (o *benchOverhead) run(ctx context.Context, a *app) (err error) {
	switch {
	case !slices.Contains(overheadFormats, o.format):
		return usagef("--format %s is not one of %s", o.format, bench.FormatNames(overheadFormats))
	case o.count < 1 || o.count > maxCount:
		return usagef("--count %d is not in 1..%d", o.count, maxCount)
	}
	if err := o.tuning.check(); err != nil {
		return err
	}
	d, err := openDevice(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	r := bench.OverheadReport{Env: environment(d.Caps()), Problem: attention.Problem{
		Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 16, SeqKV: 16, HeadDim: 64, DType: o.dtype,
	}}
	if o.format == bench.Benchfmt {
		announce(a.stderr, r.Env)
	}
	tuning, err := o.tuning.load(a.stderr, d.Caps())
	if err != nil {
		return err
	}
	bar := newProgress(a.stderr)
	r.List, err = bench.Overheads(ctx, d, bench.Case{Problem: r.Problem, Impls: o.impls, Tuning: tuning, Protocol: bench.Protocol{Samples: o.count}}, bar.step)
	bar.finish()
	if err != nil {
		return err
	}
	if o.format == bench.Benchfmt {
		err = r.WriteBenchfmt(a.stdout)
	} else {
		err = bench.WriteSheet(a.stdout, r.Sheet(), o.format)
	}
	if err != nil {
		return err
	}
	for _, x := range r.List {
		switch {
		case x.Status == bench.StatusFailed:
			return fmt.Errorf("%s is wrong: %s", x.Impl, x.Reason)
		case x.Status == bench.StatusUnsupported && o.set.Changed("impl"):
			return fmt.Errorf("%s is not supported: %s", x.Impl, x.Reason)
		}
	}
	return nil
}
