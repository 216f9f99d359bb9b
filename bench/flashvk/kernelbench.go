package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/bench/kernels"
	"github.com/flashvk/flashvk/vk"
)

// benchKernel holds the flags of bench NAME for a kernel of package kernels.
type benchKernel struct {
	kernelProblem
	passes  passFlags
	measure protocolFlags
	impls   []string
	format  bench.Format
	device  string
	peers   peerFlags
}

func newBenchKernel(a *app, k kernels.Kernel) *cobra.Command {
	b := &benchKernel{kernelProblem: newKernelProblem(k), format: bench.Table}
	cmd := &cobra.Command{
		Use:     k.Name,
		Short:   "Measure " + k.Title,
		Long:    k.Bench.Long,
		Example: k.Bench.Example,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	b.add(f)
	f.Var(value[[]string]{&b.impls, b.parseImpls, "PATHS"}, "impl", "paths, a comma list of "+strings.Join(k.Impls, ", ")+" (default auto)")
	b.measure.add(f)
	f.Var(value[bench.Format]{&b.format, parseFormat, "FORMAT"}, "format", "table (default), markdown, benchfmt, csv or json")
	deviceVar(f, &b.device)
	b.peers.add(f)
	b.addPasses(f, &b.passes)
	return cmd
}

// parseImpls reads a comma list of the kernel's paths.
func (b *benchKernel) parseImpls(text string) ([]string, error) {
	list := strings.Split(text, ",")
	for i, name := range list {
		if !slices.Contains(b.kernel.Impls, name) {
			return nil, fmt.Errorf("%q is not one of %s", name, strings.Join(b.kernel.Impls, ", "))
		}
		if slices.Contains(list[:i], name) {
			return nil, fmt.Errorf("%q occurs twice", name)
		}
	}
	return list, nil
}

func (b *benchKernel) run(ctx context.Context, a *app) (err error) {
	for _, err := range []error{b.passes.check(b.peers.list), b.measure.check(), b.peers.check()} {
		if err != nil {
			return err
		}
	}
	// Most mistakes show before a device is opened.
	if _, err := b.ops(false); err != nil {
		return err
	}
	d, err := openDevice(b.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	report := bench.Report{Env: environment(d.Caps())}
	if b.format != bench.Table && b.format != bench.Markdown {
		announce(a.stderr, report.Env)
	}
	ops, err := b.ops(report.Env.CPU)
	if err != nil {
		return err
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
	report.Drift = monitor.Drift()
	// What is known is written even if the run was cut short.
	if err := errors.Join(err, report.Write(a.stdout, b.format)); err != nil {
		return err
	}
	return verdict(report, b.set.Changed("impl"))
}

// measureAll measures the problems one after the other. One for which the device
// has not enough memory is as unsupported, if there are others. With an error it
// returns the results of the problems before.
func (b *benchKernel) measureAll(ctx context.Context, a *app, d *vk.Device, ops []bench.Op, pr bench.Protocol) ([]bench.Result, error) {
	bar := newProgress(a.stderr)
	defer bar.finish()
	impls := b.impls
	if impls == nil {
		impls = b.kernel.Impls[:1]
	}
	var all []bench.Result
	for i, op := range ops {
		c := bench.OpCase{Op: op, Pass: b.passes.pass(), Impls: impls, Protocol: pr, Peers: b.peers.list, PeerTime: b.peers.limit}
		results, err := bench.MeasureOp(ctx, d, c, bar.part(i, len(ops), fmt.Sprintf("case %d of %d", i+1, len(ops))))
		if errors.Is(err, vk.ErrOutOfDeviceMemory) && len(ops) > 1 {
			results, err = bench.UnsupportedOp(c, err), nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, results...)
	}
	return all, nil
}
