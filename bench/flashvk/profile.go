package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/bench/kernels"
)

func newProfile(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "profile KERNEL",
		Short:                 "Show where the time of a call goes",
		DisableFlagsInUseLine: true,
		Args:                  subcommandOnly,
		RunE:                  subcommandMissing,
	}
	cmd.AddCommand(newProfileAttention(a))
	for _, k := range kernels.All() {
		cmd.AddCommand(newProfileKernel(a, k))
	}
	return cmd
}

// profileFlags are those that all kernels have.
type profileFlags struct {
	set           *pflag.FlagSet
	count         int
	format        bench.Format
	trace, device string
}

// profileFormats are those that profile writes.
var profileFormats = []bench.Format{bench.Table, bench.Markdown}

// add adds the flags to f.
func (p *profileFlags) add(f *pflag.FlagSet) {
	p.set, p.format = f, bench.Table
	intVar(f, &p.count, "count", "samples of the whole call (default 10)")
	f.StringVar(&p.trace, "trace", "", "file for a timeline of some calls, which chrome://tracing and ui.perfetto.dev show")
	f.Var(value[bench.Format]{&p.format, parseFormat, "FORMAT"}, "format", "table (default) or markdown")
	deviceVar(f, &p.device)
}

// check returns a usage error.
func (p *profileFlags) check() error {
	switch {
	case !slices.Contains(profileFormats, p.format):
		return usagef("--format %s is not one of %s", p.format, bench.FormatNames(profileFormats))
	case p.set.Changed("count") && (p.count < 1 || p.count > maxCount):
		return usagef("--count %d is not in 1..%d", p.count, maxCount)
	case p.set.Changed("trace") && p.trace == "":
		return usagef("--trace is empty")
	}
	return nil
}

// protocol returns how to measure.
func (p *profileFlags) protocol(cpu bool) bench.Protocol {
	pr := bench.DefaultProtocol(cpu)
	if p.set.Changed("count") {
		pr.Samples = p.count
	}
	return pr
}

// write writes what was found out.
func (p *profileFlags) write(a *app, profile *bench.Profile) error {
	if err := bench.WriteSheet(a.stdout, profile.Sheet(), p.format); err != nil {
		return err
	}
	if p.trace == "" {
		return nil
	}
	var b bytes.Buffer
	if err := profile.WriteTrace(&b); err != nil {
		return err
	}
	if err := os.WriteFile(p.trace, b.Bytes(), 0o666); err != nil {
		return err
	}
	fmt.Fprintf(a.stderr, "flashvk: wrote %s\n", p.trace)
	return nil
}

// profileAttention holds the flags of profile attention.
type profileAttention struct {
	problem problemFlagSet
	profile profileFlags
	passes  passFlags
	impl    attention.Impl
	tuning  tuningFlags
}

func newProfileAttention(a *app) *cobra.Command {
	p := profileAttention{}
	cmd := &cobra.Command{
		Use:   "attention",
		Short: "Show where the time of softmax attention goes",
		Long: `Times each kernel of a call of softmax attention, after checking that it is right,
and compares operations and traffic with what loops that do nothing else reach on
this device: matrix products, float32 multiply-adds, a copy. Registers,
spills and shared memory are those that the driver reports.

Sizes that are not given are those of bench attention.`,
		Example: `  flashvk profile attention
  flashvk profile attention --batch 4 --heads 32 --seqlen 4096 --headdim 64 --causal --trace trace.json
  flashvk profile attention --seqlen 1024 --impl unfused --format markdown`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context(), a) },
	}
	p.add(cmd.Flags())
	return cmd
}

// add adds the flags to f.
func (p *profileAttention) add(f *pflag.FlagSet) {
	f.SortFlags = false
	p.problem.add(f)
	p.passes.add(f)
	f.Var(value[attention.Impl]{&p.impl, parseImpl, "PATH"}, "impl", "path: "+implNames()+" (default auto)")
	p.profile.add(f)
	p.tuning.add(f)
}

func (p *profileAttention) check() error {
	if err := errors.Join(p.profile.check(), p.passes.check(nil), p.tuning.check()); err != nil {
		return err
	}
	_, err := p.problem.problem(gpuDefault())
	return err
}

func (p *profileAttention) run(ctx context.Context, a *app) (err error) {
	if err := p.check(); err != nil {
		return err
	}
	d, err := openDevice(p.profile.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	env := environment(d.Caps())
	defaults := gpuDefault()
	if env.CPU {
		defaults = cpuDefault()
	}
	c := bench.Case{Pass: p.passes.pass(), Impls: []attention.Impl{p.impl}, Protocol: p.profile.protocol(env.CPU)}
	if c.Problem, err = p.problem.problem(defaults); err != nil {
		return err
	}
	if c.Tuning, err = p.tuning.load(a.stderr, d.Caps()); err != nil {
		return err
	}
	bar := newProgress(a.stderr)
	profile, err := bench.ProfileAttention(ctx, d, env, c, bar.step)
	bar.finish()
	if err != nil {
		return err
	}
	return p.profile.write(a, profile)
}
