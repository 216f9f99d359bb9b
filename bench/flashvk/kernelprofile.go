package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/bench/kernels"
)

// profileKernel holds the flags of profile NAME for a kernel of package kernels.
type profileKernel struct {
	problem kernelProblem
	profile profileFlags
	passes  passFlags
	impl    string
}

func newProfileKernel(a *app, k kernels.Kernel) *cobra.Command {
	p := &profileKernel{problem: newKernelProblem(k), impl: k.Impls[0]}
	cmd := &cobra.Command{
		Use:   k.Name,
		Short: "Show where the time of " + k.Title + " goes",
		Long: fmt.Sprintf(`Times each dispatch of a call of %[1]s, in the order in which it records them, after
checking that the call is right, as bench %[1]s does; and compares the operations and
the traffic that a dispatch has at least with what loops that do nothing else reach on
this device: matrix products, float32 multiply-adds, a copy. Registers, spills and
shared memory are those that the driver reports. Where a kernel is dispatched more than
once, a second table has the sums.

A timestamp waits for all that was recorded before it. Dispatches with no barrier
between them may run side by side, and the time of the second is then what is left when
the first has ended.

The problem, and sizes that are not given, are those of bench %[1]s; so is the suite,
of which each case has a table.`, k.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	p.problem.add(f)
	kernelImplVar(f, &p.impl, k, "path")
	p.profile.add(f)
	p.problem.addPasses(f, &p.passes)
	cmd.Example = "  flashvk profile " + k.Name
	if f.Lookup("backward") != nil {
		cmd.Example += fmt.Sprintf("\n  flashvk profile %s --backward --trace trace.json", k.Name)
	}
	cmd.Example += fmt.Sprintf("\n  flashvk profile %s --suite training --format markdown", k.Name)
	return cmd
}

func (p *profileKernel) check() error {
	if err := errors.Join(p.profile.check(), p.passes.check(nil)); err != nil {
		return err
	}
	_, err := p.problem.ops(false)
	return err
}

func (p *profileKernel) run(ctx context.Context, a *app) (err error) {
	if err := p.check(); err != nil {
		return err
	}
	d, err := openDevice(p.profile.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	env := environment(d.Caps())
	ops, err := p.problem.ops(env.CPU)
	if err != nil {
		return err
	}
	var cases []bench.OpCase
	for _, op := range ops {
		cases = append(cases, bench.OpCase{Op: op, Pass: p.passes.pass(), Impls: []string{p.impl}, Protocol: p.profile.protocol(env.CPU)})
	}
	bar := newProgress(a.stderr)
	profile, err := bench.ProfileOps(ctx, d, env, cases, bar.step)
	bar.finish()
	if err != nil {
		return err
	}
	if err := p.profile.write(a, profile); err != nil {
		return err
	}
	report := bench.Report{Env: env}
	for _, c := range profile.Calls {
		report.Results = append(report.Results, c.Result)
	}
	return verdict(report, p.problem.set.Changed("impl"))
}
