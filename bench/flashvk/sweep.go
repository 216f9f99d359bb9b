package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
)

// sweep holds the flags of sweep NAME.
type sweep struct {
	kernelProblem
	lengths     *lengthFlags // of sweep without a name; nil: of sweep NAME
	passes      passFlags
	count       int
	impls       []string
	csv, device string
	peers       peerFlags
}

func newSweep(a *app) *cobra.Command {
	k, _ := kernels.Find("attention")
	s := sweep{kernelProblem: newKernelProblem(k), lengths: new(lengthFlags)}
	cmd := &cobra.Command{
		Use:   "sweep [KERNEL]",
		Short: "Measure a kernel at many sizes, into a CSV file",
		Long: `Measures one problem after the other, as bench does, and appends a line for each
problem and path to a CSV file: softmax attention at many sequence lengths, or the
named kernel at any sizes.

An interrupted sweep continues when it is started again with the same file: problems in
the file are not measured again. flashvk plot draws the file.

` + gridHelp,
		Example: `  flashvk sweep --min-len 128 --max-len 2048 --step 128 --dtype float16 --csv results.csv
  flashvk sweep --min-len 512 --max-len 16384 --step 512 --batch 1 --heads 16 --headdim 128 --causal --impl coopmat2,coopmat --csv causal.csv
  flashvk sweep gemm --m 512..8192x2 --n 1365 --k 512 --csv gemm.csv`,
		DisableFlagsInUseLine: true,
		Args:                  noArgs,
		RunE:                  func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), a) },
	}
	s.add(cmd.Flags())
	addKernels(cmd, func(k kernels.Kernel) *cobra.Command { return newSweepKernel(a, k) })
	return cmd
}

func newSweepKernel(a *app, k kernels.Kernel) *cobra.Command {
	s := &sweep{kernelProblem: newKernelProblem(k)}
	cmd := &cobra.Command{
		Use:   k.Name,
		Short: "Measure " + k.Title + " at many sizes, into a CSV file",
		Long: fmt.Sprintf(`Measures problems of %[1]s as bench %[1]s does, and appends a line for each problem and
path to a CSV file. An interrupted sweep completes it when it is started again.

`, k.Name) + gridHelp,
		Example: fmt.Sprintf("  flashvk sweep %s %s --csv %s.csv", k.Name, k.Sweep, k.Name),
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), a) },
	}
	s.add(cmd.Flags())
	return cmd
}

// add adds the flags to f.
func (s *sweep) add(f *pflag.FlagSet) {
	f.SortFlags = false
	s.count = 10
	if s.lengths != nil {
		s.lengths.add(f)
		s.unless = func(bool) []string { return s.lengths.presets() }
	}
	f.StringVar(&s.csv, "csv", "", "file for the results; one that is there is completed")
	s.addGrid(f)
	s.addPasses(f, &s.passes)
	otherwise := "default auto"
	if s.kernel.AllPaths {
		otherwise = "default all but auto"
	}
	implsVar(f, &s.impls, s.kernel, otherwise)
	intVar(f, &s.count, "count", "samples of each path (default 10)")
	deviceVar(f, &s.device)
	s.addTuning(f)
	s.peers.add(f)
}

// paths returns the paths to measure.
func (s *sweep) paths() []string {
	switch {
	case s.impls != nil:
		return s.impls
	case s.kernel.AllPaths:
		return s.kernel.Impls[1:]
	}
	return s.kernel.Impls[:1]
}

// lengthFlags are the flags of sweep without a kernel, which varies the length of attention.
type lengthFlags struct{ min, max, step int }

func (l *lengthFlags) add(f *pflag.FlagSet) {
	*l = lengthFlags{128, 2048, 128}
	intVar(f, &l.min, "min-len", "first length (default 128)")
	intVar(f, &l.max, "max-len", "last length, if a step hits it (default 2048)")
	intVar(f, &l.step, "step", "from one length to the next (default 128)")
}

// presets returns the values of flags that the command line does not have.
func (l *lengthFlags) presets() []string {
	return []string{"batch=1", "heads=8", "headdim=64", "dtype=float16", fmt.Sprintf("seqlen=%d..%d+%d", l.min, l.max, l.step)}
}

// check returns a usage error.
func (l *lengthFlags) check(f *pflag.FlagSet) error {
	switch {
	case l.min < 1:
		return usagef("--min-len %d is less than 1", l.min)
	case l.max < l.min:
		return usagef("--max-len %d is less than --min-len %d", l.max, l.min)
	case l.step < 1:
		return usagef("--step %d is less than 1", l.step)
	case (l.max-l.min)/l.step >= maxProblems:
		return usagef("--step %d makes %d lengths, more than %d", l.step, (l.max-l.min)/l.step+1, maxProblems)
	}
	for _, name := range []string{"min-len", "max-len", "step"} {
		if f.Changed("seqlen") && f.Changed(name) {
			return usagef("--seqlen and --%s contradict each other", name)
		}
	}
	return nil
}

// checkAll returns a usage error.
func (s *sweep) checkAll() error {
	if s.csv == "" {
		return usagef("sweep needs --csv FILE")
	}
	if s.lengths != nil {
		if err := s.lengths.check(s.set); err != nil {
			return err
		}
	}
	if s.count < 1 || s.count > maxCount {
		return usagef("--count %d is not in 1..%d", s.count, maxCount)
	}
	if err := errors.Join(s.passes.check(s.peers.list), s.peers.check()); err != nil {
		return err
	}
	return s.check()
}

func (s *sweep) run(ctx context.Context, a *app) (err error) {
	if err := s.checkAll(); err != nil {
		return err
	}
	d, err := a.openDevice(s.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	env := environment(d.Caps())
	announce(a.stderr, env)
	ops, _, err := s.on(a.stderr, d.Caps())
	if err != nil {
		return err
	}
	var subjects []*bench.Subject
	for _, op := range ops {
		subjects = append(subjects, bench.NewSubject(op, s.passes.pass()))
	}
	file, err := bench.OpenSweep(s.csv, env, subjects)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	pr := bench.DefaultProtocol(env.CPU)
	pr.Samples = s.count
	monitor, err := watch(ctx, d, &pr)
	if err != nil {
		return err
	}
	defer monitor.Close()
	bar := newProgress(a.stderr)
	defer bar.finish()
	kept := 0
	var all []bench.Result
	for i, op := range ops {
		c := bench.Case{Op: op, Pass: s.passes.pass(), Protocol: pr, PeerTime: s.peers.limit}
		if c.Impls, c.Peers = file.Missing(subjects[i], s.paths(), s.peers.list); len(c.Impls)+len(c.Peers) == 0 {
			kept++
			continue
		}
		results, err := measureOne(ctx, d, c, bar.part(i, len(ops), fmt.Sprintf("problem %d of %d", i+1, len(ops))))
		if err != nil {
			return err
		}
		if err := file.Append(results); err != nil {
			return err
		}
		all = append(all, results...)
	}
	bar.finish()
	fmt.Fprintf(a.stderr, "flashvk: %s: measured %d problems, kept %d of an earlier run\n", s.csv, len(ops)-kept, kept)
	if text := monitor.Drift().String(); text != "" {
		fmt.Fprintf(a.stderr, "flashvk: %s\n", text)
	}
	return verdict(all, s.set.Changed("impl"))
}
