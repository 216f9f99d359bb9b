package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/files"
	"github.com/flashvk/flashvk/vk"
)

// profileKernel holds the flags of profile NAME.
type profileKernel struct {
	kernelFlags
	impl, trace string
}

func newProfile(a *app) *cobra.Command {
	return kernelCommands("profile KERNEL", func(k kernels.Kernel) *cobra.Command {
		p := &profileKernel{kernelFlags: newKernelFlags(k), impl: k.Impls[0]}
		return a.command(&cobra.Command{Use: k.Name}, p.add, func(ctx context.Context) error { return p.run(ctx, a) })
	})
}

func (p *profileKernel) add(f *pflag.FlagSet) {
	p.addSizes(f, false)
	p.addSuite(f)
	implVar(f, &p.impl, p.kernel, "path")
	kernels.IntVar(f, &p.count, "count", "samples of the whole call (default 10)")
	f.StringVar(&p.trace, "trace", "", "file for a timeline of some calls, for chrome://tracing or ui.perfetto.dev")
	p.output.add(f, "or markdown", bench.Table, bench.Markdown)
	p.addPasses(f)
	p.addTuning(f)
}

// implVar adds a flag for one path of k.
func implVar(f *pflag.FlagSet, to *string, k kernels.Kernel, usage string) {
	f.Var(value[string]{Target: to, Parse: kernels.OneOf(k.Impls), Kind: "PATH"}, "impl", usage+": "+strings.Join(k.Impls, ", ")+" (default auto)")
}

func (p *profileKernel) run(ctx context.Context, a *app) error {
	switch {
	case p.set.Changed("trace") && p.trace == "":
		return usagef("--trace is empty")
	case files.Same(p.trace, p.tuning):
		return usagef("--trace and --tuning are the same file, %s", p.trace)
	}
	if err := p.check(); err != nil {
		return err
	}
	return a.onDevice(p.device, func(d *vk.Device, env bench.Environment) error {
		ops, _, err := p.on(a.stderr, d.Caps())
		if err != nil {
			return err
		}
		var cases []bench.Case
		for _, op := range ops {
			cases = append(cases, bench.Case{Op: op, Pass: p.pass(), Impls: []string{p.impl}, Protocol: p.protocol(env.CPU)})
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
	})
}

// write writes the profile.
func (p *profileKernel) write(a *app, profile *bench.Profile) error {
	if err := bench.WriteSheet(a.stdout, profile.Sheet(), p.format, p.wide); err != nil || p.trace == "" {
		return err
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

// benchOverhead holds the flags of bench overhead.
type benchOverhead struct {
	kernelFlags
	starts bool
}

func newBenchOverhead(a *app) *cobra.Command {
	cmd := kernelCommands("overhead [KERNEL]", func(k kernels.Kernel) *cobra.Command {
		return newOverheadOf(a, k, &cobra.Command{Use: k.Name})
	})
	k, _ := kernels.Find("attention")
	return newOverheadOf(a, k, cmd)
}

func newOverheadOf(a *app, k kernels.Kernel, cmd *cobra.Command) *cobra.Command {
	o := &benchOverhead{kernelFlags: newKernelFlags(k)}
	o.unless = func(bool) []string { return k.Tiny }
	if o.impls = k.Impls[:1]; len(k.Impls) > 1 {
		o.impls = k.Impls[1:]
	}
	cmd.Args = noArgs
	return a.command(cmd, func(f *pflag.FlagSet) {
		o.addSizes(f, false)
		o.addPasses(f)
		o.addImpls(f, k.Impls, strings.Join(o.impls, ","))
		o.addCount(f)
		kernels.BoolVar(f, &o.starts, "starts", "also a cold and a warm start, up to 3 of each (default on a GPU)")
		o.output.add(f, "markdown, or benchfmt, for bench compare", bench.Table, bench.Markdown, bench.Benchfmt)
		o.addTuning(f)
	}, func(ctx context.Context) error { return o.run(ctx, a) })
}

func (o *benchOverhead) run(ctx context.Context, a *app) error {
	if err := o.check(); err != nil {
		return err
	}
	return a.onDevice(o.device, func(d *vk.Device, env bench.Environment) error {
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
		c := bench.Case{Op: ops[0], Pass: o.pass(), Impls: o.impls, Protocol: bench.Protocol{Samples: o.count, WallTime: -1}}
		r := bench.Report{Env: env, Wide: o.wide}
		bar := newProgress(a.stderr)
		r.Results, err = bench.Overheads(ctx, d, c, bar.step)
		if err == nil && (o.starts || !o.set.Changed("starts") && !env.CPU) {
			open := func(dir string) (*vk.Device, error) {
				return vk.Open(vk.Options{Device: strconv.Itoa(d.Caps().Index), CacheDir: dir, Name: "flashvk start"})
			}
			err = bench.MeasureStarts(ctx, open, c, r.Results)
		}
		bar.finish()
		if err == nil {
			err = r.Write(a.stdout, o.format)
		}
		if err != nil {
			return err
		}
		return verdict(r.Results, o.set.Changed("impl"))
	})
}
