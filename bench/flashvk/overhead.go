package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/vk"
)

// benchOverhead holds the flags of bench overhead.
type benchOverhead struct {
	kernelProblem
	passes passFlags
	count  int
	starts bool
	wide   bool
	impls  []string
	format bench.Format
	device string
}

// overheadFormats are the formats of bench overhead.
var overheadFormats = []bench.Format{bench.Table, bench.Markdown, bench.Benchfmt}

func newBenchOverhead(a *app) *cobra.Command {
	k, _ := kernels.Find("attention")
	cmd := newOverheadOf(a, k, "overhead [KERNEL]")
	cmd.Short = "Measure what a call costs the host"
	cmd.Example = `  flashvk bench overhead
  flashvk bench overhead --impl coopmat2,scalar --count 20 --format benchfmt > overhead.txt
  flashvk bench overhead gemm`
	addKernels(cmd, func(k kernels.Kernel) *cobra.Command { return newOverheadOf(a, k, k.Name) })
	return cmd
}

func newOverheadOf(a *app, k kernels.Kernel, use string) *cobra.Command {
	o := &benchOverhead{kernelProblem: newKernelProblem(k), format: bench.Table, impls: k.Impls[:1], count: 10}
	if len(k.Impls) > 1 {
		o.impls = k.Impls[1:]
	}
	o.unless = func(bool) []string { return k.Tiny }
	cmd := &cobra.Command{
		Use:   use,
		Short: "Measure what a call of " + k.Title + " costs the host",
		Long: fmt.Sprintf(`Measures what a call of %s costs the host: recording a call, recording and submitting it,
submitting a recorded call, waiting for it, and replaying a recording of many calls. The
problem is so small that the work of the device hardly counts.

--starts also measures starts, from opening the device to the end of the first call: cold,
with no pipeline compiled, and warm, with all of them in a cache as programs keep it. The
driver's own caches are turned off where the driver obeys MESA_SHADER_CACHE_DISABLE or
__GL_SHADER_DISK_CACHE.`, k.Name),
		DisableFlagsInUseLine: true,
		Args:                  noArgs,
		RunE:                  func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), a) },
	}
	o.add(cmd.Flags())
	return cmd
}

// add adds the flags to f.
func (o *benchOverhead) add(f *pflag.FlagSet) {
	f.SortFlags = false
	o.addSizes(f)
	o.addPasses(f, &o.passes)
	implsVar(f, &o.impls, o.kernel, "default "+strings.Join(o.impls, ","))
	intVar(f, &o.count, "count", "samples of each path (default 10)")
	kernels.BoolVar(f, &o.starts, "starts", "also a cold and a warm start, up to 3 of each (default on a GPU)")
	formatVar(f, &o.format, overheadFormats, "table (default), markdown, or benchfmt, for bench compare")
	wideVar(f, &o.wide)
	deviceVar(f, &o.device)
	o.addTuning(f)
}

func (o *benchOverhead) run(ctx context.Context, a *app) (err error) {
	switch {
	case o.count < 1 || o.count > maxCount:
		return usagef("--count %d is not in 1..%d", o.count, maxCount)
	}
	if err := errors.Join(o.passes.check(nil), o.check()); err != nil {
		return err
	}
	d, err := a.openDevice(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	env := environment(d.Caps())
	if o.format == bench.Benchfmt {
		announce(a.stderr, env)
	}
	ops, err := o.problems(true) // small ones
	if err == nil {
		err = o.use(a.stderr, d.Caps(), ops)
	}
	if err != nil {
		return err
	}
	if len(ops) > 1 {
		return usagef("bench overhead measures one problem, not %d", len(ops))
	}
	c := bench.Case{Op: ops[0], Pass: o.passes.pass(), Impls: o.impls, Protocol: bench.Protocol{Samples: o.count}}
	r := bench.OverheadReport{Env: env, Of: bench.NewSubject(c.Op, c.Pass)}
	bar := newProgress(a.stderr)
	r.List, err = bench.Overheads(ctx, d, c, bar.step)
	if err == nil && (o.starts || !o.set.Changed("starts") && !env.CPU) {
		open := func(dir string) (*vk.Device, error) {
			return vk.Open(vk.Options{Device: strconv.Itoa(d.Caps().Index), CacheDir: dir, Name: "flashvk start"})
		}
		err = bench.MeasureStarts(ctx, open, c, r.List)
	}
	bar.finish()
	if err != nil {
		return err
	}
	if o.format == bench.Benchfmt {
		err = r.WriteBenchfmt(a.stdout)
	} else {
		err = bench.WriteSheet(a.stdout, r.Sheet(), o.format, o.wide)
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
