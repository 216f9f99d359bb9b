package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/vk"
)

func newBench(a *app) *cobra.Command {
	cmd := kernelCommands("bench KERNEL", "Measure a kernel, after checking that it is right; compare measurements",
		func(k kernels.Kernel) *cobra.Command { return newBenchKernel(a, k) })
	cmd.AddCommand(newBenchTrain(a), newBenchOverhead(a), newBenchCompare(a))
	return cmd
}

// benchKernel holds the flags of bench NAME.
type benchKernel struct {
	kernelProblem
	passes  passFlags
	measure protocolFlags
	impls   []string
	wide    bool
	quiet   bool
	format  bench.Format
	device  string
	peers   peerFlags
	close   closeFlags
	out     outDir
}

func newBenchKernel(a *app, k kernels.Kernel) *cobra.Command {
	b := &benchKernel{kernelProblem: newKernelProblem(k), format: bench.Table}
	cmd := &cobra.Command{
		Use:     k.Name,
		Short:   "Measure " + k.Title,
		Long:    k.Bench.Long + "\n\n" + gridHelp,
		Example: k.Bench.Example,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), a) },
	}
	b.add(cmd.Flags())
	return cmd
}

// add adds the flags to f.
func (b *benchKernel) add(f *pflag.FlagSet) {
	f.SortFlags = false
	b.addGrid(f)
	b.addSuite(f)
	otherwise := "default auto"
	if b.kernel.AllPaths {
		otherwise = "default all; auto chooses one of them"
	}
	implsVar(f, &b.impls, b.kernel, otherwise)
	b.measure.add(f)
	formatVar(f, &b.format, bench.Formats(), "table (default), markdown, benchfmt, csv or json")
	wideVar(f, &b.wide)
	kernels.BoolVar(f, &b.quiet, "quiet", "tables and warnings alone, without what the run and the columns are")
	deviceVar(f, &b.device)
	b.addTuning(f)
	b.peers.add(f)
	b.close.add(f)
	b.out.add(f)
	b.addPasses(f, &b.passes)
}

func (b *benchKernel) run(ctx context.Context, a *app) (err error) {
	for _, check := range []func() error{
		func() error { return b.passes.check(nil) }, b.close.check, b.measure.check, b.peers.check, b.check, b.out.prepare,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	d, err := a.openDevice(b.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	report := bench.Report{Env: environment(d.Caps()), Made: time.Now(), Wide: b.wide, Quiet: b.quiet}
	if b.format != bench.Table && b.format != bench.Markdown {
		announce(a.stderr, report.Env)
	}
	var ops []bench.Op
	if ops, report.Suite, err = b.on(a.stderr, d.Caps()); err != nil {
		return err
	}
	if report.Suite == nil && len(ops) > 1 {
		report.Suite = bench.Grid()
	}
	pr := b.measure.protocol(report.Env.CPU)
	monitor, err := watch(ctx, d, &pr)
	if err != nil {
		return err
	}
	defer monitor.Close()
	if report.Results, err = b.measureAll(ctx, a, d, ops, pr); err != nil && len(report.Results) == 0 {
		return err
	}
	if counted, ok := ops[0].(interface{ Amounts() []bench.Amount }); ok && err == nil && len(counted.Amounts()) > 0 {
		report.Copy, err = bench.CopyRate(ctx, d, b.measure.protocol(report.Env.CPU))
	}
	// The results so far are written even if the run was cut short, and to each place even if the
	// other is full.
	report.Drift, report.Memory = monitor.Drift(), d.Memory()
	if err := errors.Join(err, b.out.write(a, b.kernel.Title, report, d.Caps()), report.Write(a.stdout, b.format)); err != nil {
		return err
	}
	return verdict(report.Results, b.set.Changed("impl"))
}

// measureAll measures the problems one after the other. With an error it returns the results of
// the problems before.
func (b *benchKernel) measureAll(ctx context.Context, a *app, d *vk.Device, ops []bench.Op, pr bench.Protocol) ([]bench.Result, error) {
	bar := newProgress(a.stderr)
	defer bar.finish()
	var all []bench.Result
	for i, op := range ops {
		c := bench.Case{Op: op, Pass: b.passes.pass(), Impls: b.paths(b.suite != nil || len(ops) > 1), Protocol: pr, Peers: b.peers.list, PeerTime: b.peers.limit, Close: b.close.tolerance()}
		var results []bench.Result
		var err error
		if len(ops) == 1 {
			results, err = runCase(ctx, d, c, bar.step)
		} else {
			results, err = measureOne(ctx, d, c, bar.part(i, len(ops), fmt.Sprintf("case %d of %d", i+1, len(ops))))
		}
		if err != nil {
			return all, err
		}
		all = append(all, results...)
	}
	return all, nil
}

// runCase measures a case. Both passes with peers are also measured each alone.
func runCase(ctx context.Context, d *vk.Device, c bench.Case, progress bench.Progress) ([]bench.Result, error) {
	if c.Pass == bench.Both && len(c.Peers) > 0 {
		return bench.RunBoth(ctx, d, c, progress)
	}
	return bench.Run(ctx, d, c, progress)
}

// measureOne measures a case of several. Where the device has not enough memory for it, its paths
// are unsupported.
func measureOne(ctx context.Context, d *vk.Device, c bench.Case, progress bench.Progress) ([]bench.Result, error) {
	results, err := runCase(ctx, d, c, progress)
	if errors.Is(err, vk.ErrOutOfDeviceMemory) {
		return bench.Unsupported(c, err), nil
	}
	return results, err
}

// paths returns the paths to measure, of one problem or of many. For many, auto is the
// first.
func (b *benchKernel) paths(many bool) []string {
	var list []string
	switch k := b.kernel; {
	case b.impls != nil:
		list = append(list, b.impls...)
	case k.AllPaths && many:
		list = append(list, k.Impls...)
	case k.AllPaths:
		list = append(list, k.Impls[1:]...)
	default:
		list = append(list, k.Impls[0])
	}
	return list
}
