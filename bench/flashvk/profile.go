package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/files"
)

func newProfile(a *app) *cobra.Command {
	return kernelCommands("profile KERNEL", "Time each dispatch of a call", func(k kernels.Kernel) *cobra.Command { return newProfileKernel(a, k) })
}

// profileFormats are the formats of profile.
var profileFormats = []bench.Format{bench.Table, bench.Markdown}

// profileKernel holds the flags of profile NAME.
type profileKernel struct {
	kernelProblem
	passes        passFlags
	impl          string
	count         int
	format        bench.Format
	wide          bool
	trace, device string
}

func newProfileKernel(a *app, k kernels.Kernel) *cobra.Command {
	p := &profileKernel{kernelProblem: newKernelProblem(k), impl: k.Impls[0], format: bench.Table, count: 10}
	cmd := &cobra.Command{
		Use:   k.Name,
		Short: "Time each dispatch of " + k.Title,
		Long: fmt.Sprintf(`Times each dispatch of a call of %[1]s, in the order of recording, after checking the
call as bench %[1]s does. The least operations and traffic of a dispatch are compared
with the rates of loops that do nothing else on this device: matrix products, float32
multiply-adds, a copy. The driver reports registers, spills and shared memory. If a
kernel is dispatched more than once, a second table has the sums.

A timestamp waits for all that was recorded before it. Dispatches without a barrier
between them may run side by side; the time of the second is then what remains after the
first has ended.

Problem, default sizes and suites are those of bench %[1]s. Each case of a suite has a
table.`, k.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	p.add(f)
	implVar(f, &p.impl, k, "path")
	intVar(f, &p.count, "count", "samples of the whole call (default 10)")
	f.StringVar(&p.trace, "trace", "", "file for a timeline of some calls, for chrome://tracing or ui.perfetto.dev")
	formatVar(f, &p.format, profileFormats, "table (default) or markdown")
	wideVar(f, &p.wide)
	deviceVar(f, &p.device)
	p.addPasses(f, &p.passes)
	p.addTuning(f)
	cmd.Example = "  flashvk profile " + k.Name
	if f.Lookup("backward") != nil {
		cmd.Example += fmt.Sprintf("\n  flashvk profile %s --backward --trace trace.json", k.Name)
	}
	cmd.Example += fmt.Sprintf("\n  flashvk profile %s --suite %s --format markdown", k.Name, kernels.Suites(k.New())[0].Name)
	return cmd
}

// checkAll returns a usage error.
func (p *profileKernel) checkAll() error {
	switch {
	case p.count < 1 || p.count > maxCount:
		return usagef("--count %d is not in 1..%d", p.count, maxCount)
	case p.set.Changed("trace") && p.trace == "":
		return usagef("--trace is empty")
	case p.tuning != nil && files.Same(p.trace, p.tuning.file):
		return usagef("--trace and --tuning are the same file, %s", p.trace)
	}
	if err := p.passes.check(nil); err != nil {
		return err
	}
	return p.check()
}

func (p *profileKernel) run(ctx context.Context, a *app) (err error) {
	if err := p.checkAll(); err != nil {
		return err
	}
	d, err := a.openDevice(p.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	env := environment(d.Caps())
	ops, _, err := p.on(a.stderr, d.Caps())
	if err != nil {
		return err
	}
	pr := bench.DefaultProtocol(env.CPU)
	pr.Samples = p.count
	var cases []bench.Case
	for _, op := range ops {
		cases = append(cases, bench.Case{Op: op, Pass: p.passes.pass(), Impls: []string{p.impl}, Protocol: pr})
	}
	bar := newProgress(a.stderr)
	profile, err := bench.RunProfile(ctx, d, env, cases, bar.step)
	bar.finish()
	if err != nil {
		return err
	}
	if err := p.write(a, profile); err != nil {
		return err
	}
	var results []bench.Result
	for _, c := range profile.Calls {
		results = append(results, c.Result)
	}
	return verdict(results, p.set.Changed("impl"))
}

// write writes the profile.
func (p *profileKernel) write(a *app, profile *bench.Profile) error {
	if err := bench.WriteSheet(a.stdout, profile.Sheet(), p.format, p.wide); err != nil {
		return err
	}
	if p.trace == "" {
		return nil
	}
	var b bytes.Buffer
	if err := profile.WriteTrace(&b); err != nil {
		return err
	}
	if err := files.Write(p.trace, b.Bytes()); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "flashvk: wrote %s\n", p.trace)
	return nil
}
