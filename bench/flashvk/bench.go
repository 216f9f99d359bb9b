package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/bench/kernels"
	"github.com/flashvk/flashvk/vk"
)

func newBench(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:                   "bench KERNEL",
		Short:                 "Measure a kernel, after checking that it is right; compare measurements",
		DisableFlagsInUseLine: true,
		Args:                  subcommandOnly,
		RunE:                  subcommandMissing,
	}
	cmd.AddCommand(newBenchAttention(a), newBenchOverhead(a), newBenchCompare(a))
	for _, k := range kernels.All() {
		cmd.AddCommand(newBenchKernel(a, k))
	}
	return cmd
}

// benchAttention holds the flags of bench attention.
type benchAttention struct {
	problemFlagSet
	passes  passFlags
	measure protocolFlags
	impls   []attention.Impl
	format  bench.Format
	device  string
	tuning  tuningFlags
	suite   suiteFlags
	peers   peerFlags
	out     outDir
}

func newBenchAttention(a *app) *cobra.Command {
	b := benchAttention{format: bench.Table}
	cmd := &cobra.Command{
		Use:   "attention",
		Short: "Measure softmax attention",
		Long: `Measures softmax attention on random normal inputs: the forward pass, the
backward pass with --backward, or one after the other with --both. Every path is
checked against a float64 reference first (on sampled rows if there are many);
one that is wrong is reported and not timed, and the exit status is 1.

Times are device timestamps: the median of --count samples, each the mean of a
batch of calls, the paths taking turns. Rates count 4*batch*heads*entries*headdim
operations, entries being the unmasked pairs of query and key; of the backward pass
2.5 times that.

Sizes that are not given: batch 4, heads 16, seqlen 4096, headdim 128 on a GPU;
batch 1, heads 4, kv-heads 2, seqlen 256, headdim 64 on a CPU device. The format
benchfmt has a line per sample, for benchstat.

The suites are
` + describeSuites() + `Older names of suites still work:
` + bench.SuiteAliases() + ".",
		Example: `  flashvk bench attention
  flashvk bench attention --batch 2 --heads 8 --kv-heads 4 --seqlen 1024 --headdim 128 --dtype bfloat16 --causal
  flashvk bench attention --seqlen 16384 --causal --window 512,0 --sinks
  flashvk bench attention --seqlen 1024 --headdim 64 --causal --backward --impl auto
  flashvk bench attention --seqlen 1 --seqlen-kv 16384 --impl coopmat2,scalar --format csv
  flashvk bench attention --suite length --format markdown
  flashvk bench attention --suite throughput --out results
  flashvk bench attention --suite throughput --peer torch="python3 tools/peers/torch_sdpa.py"
  flashvk bench attention --format benchfmt > new.txt && benchstat -col /impl new.txt`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return b.run(cmd.Context(), a) },
	}
	b.add(cmd.Flags())
	return cmd
}

// add adds the flags to f.
func (b *benchAttention) add(f *pflag.FlagSet) {
	f.SortFlags = false
	b.suite.add(f)
	b.problemFlagSet.add(f)
	f.Var(value[[]attention.Impl]{&b.impls, parseImpls, "PATHS"}, "impl", "paths, a comma list of "+implNames()+" (default auto; all paths if no size, type or mask is given)")
	b.measure.add(f)
	f.Var(value[bench.Format]{&b.format, parseFormat, "FORMAT"}, "format", "table (default), markdown, benchfmt, csv or json")
	deviceVar(f, &b.device)
	b.tuning.add(f)
	b.peers.add(f)
	b.out.add(f)
	b.passes.add(f)
}

func parseFormat(text string) (bench.Format, error) {
	f, err := bench.ParseFormat(text)
	if err != nil {
		return "", errors.New("not one of " + bench.FormatNames(bench.Formats()))
	}
	return f, nil
}

func (b *benchAttention) run(ctx context.Context, a *app) (err error) {
	if err := b.passes.check(b.peers.list); err != nil {
		return err
	}
	if b.suite.naive && b.passes.pass() != bench.Forward {
		return usagef("--naive has no backward pass")
	}
	if err := b.measure.check(); err != nil {
		return err
	}
	if err := b.tuning.check(); err != nil {
		return err
	}
	if err := b.peers.check(); err != nil {
		return err
	}
	// Most mistakes show before a device is opened. A divisor of the CPU's
	// default heads divides the GPU's, too.
	if _, _, err := b.problems(false); err != nil {
		return err
	}
	if err := b.out.prepare(); err != nil {
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
	var problems []attention.Problem
	if problems, report.Suite, err = b.problems(report.Env.CPU); err != nil {
		return err
	}
	tuning, err := b.tuning.load(a.stderr, d.Caps())
	if err != nil {
		return err
	}
	pr := b.measure.protocol(report.Env.CPU)
	monitor, err := watch(ctx, d, &pr)
	if err != nil {
		return err
	}
	defer monitor.Close()
	if report.Results, err = b.measureAll(ctx, a, d, problems, tuning, pr); err != nil && len(report.Results) == 0 {
		return err
	}
	// What is known is written even if the run was cut short, and to each place even if
	// the other is full.
	report.Drift = monitor.Drift()
	if err := errors.Join(err, b.out.write(a, report, d.Caps()), report.Write(a.stdout, b.format)); err != nil {
		return err
	}
	return verdict(report, b.set.Changed("impl"))
}

// problems returns what to measure, and the suite that it is of, if any. An
// error is a usage error.
func (b *benchAttention) problems(cpu bool) ([]attention.Problem, *bench.Suite, error) {
	if b.suite.on() {
		s, err := b.suite.resolve(b.set, b.dtype, cpu)
		if err != nil {
			return nil, nil, err
		}
		return s.Problems, s, nil
	}
	if b.set.Changed("small") {
		return nil, nil, usagef("--small needs --suite")
	}
	defaults := gpuDefault()
	if cpu {
		defaults = cpuDefault()
	}
	p, err := b.problem(defaults)
	return []attention.Problem{p}, nil, err
}

// measureAll measures the problems one after the other. One for which the device
// has not enough memory is as unsupported, if there are others. With an error it
// returns the results of the problems before.
func (b *benchAttention) measureAll(ctx context.Context, a *app, d *vk.Device, problems []attention.Problem, tuning *attention.Tuning, pr bench.Protocol) ([]bench.Result, error) {
	bar := newProgress(a.stderr)
	defer bar.finish()
	var all []bench.Result
	for i, p := range problems {
		c := bench.Case{Problem: p, Pass: b.passes.pass(), Impls: b.paths(), Naive: b.naive(), Tuning: tuning, Protocol: pr, Peers: b.peers.list, PeerTime: b.peers.limit}
		var results []bench.Result
		var err error
		if len(problems) == 1 {
			results, err = bench.Attention(ctx, d, c, bar.step)
		} else {
			results, err = measureOne(ctx, d, c, bar.part(i, len(problems), fmt.Sprintf("case %d of %d", i+1, len(problems))))
		}
		if err != nil {
			return all, err
		}
		all = append(all, results...)
	}
	return all, nil
}

// paths returns what to measure.
func (b *benchAttention) paths() []attention.Impl {
	if b.set.Changed("impl") {
		return b.impls
	}
	if b.suite.on() {
		return append([]attention.Impl{attention.Auto}, attention.Impls()...)
	}
	if b.given() {
		return []attention.Impl{attention.Auto}
	}
	return attention.Impls()
}

// naive reports whether the baseline is measured, too.
func (b *benchAttention) naive() bool {
	if b.set.Changed("naive") {
		return b.suite.naive
	}
	return b.suite.on() && !b.set.Changed("impl")
}

// verdict returns an error if a path was wrong, or if one that was asked for by
// name, or every one, was not measured.
func verdict(r bench.Report, named bool) error {
	for _, x := range r.Results {
		switch {
		case x.Status == bench.StatusFailed:
			return fmt.Errorf("%s is wrong: %s", x.Impl, x.Reason)
		case x.Status == bench.StatusUnsupported && (named || r.OK() == 0):
			return fmt.Errorf("%s is not supported: %s", x.Impl, x.Reason)
		}
	}
	return nil
}
