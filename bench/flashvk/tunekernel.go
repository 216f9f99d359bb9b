package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
)

// tuneKernel holds the flags of tune NAME.
type tuneKernel struct {
	tuneFlags
	kernelProblem
	saves bool   // winners go to a file
	out   string // that file, if it is not the user's
}

func newTuneKernel(a *app, k kernels.Kernel) *cobra.Command {
	t := tuneKernel{tuneFlags: tuneFlags{table: k.Tune.Table, impls: k.Tune.Impls, format: bench.Table}, kernelProblem: newKernelProblem(k)}
	t.unless = k.Tune.Unless
	cmd := &cobra.Command{
		Use:     k.Name,
		Short:   "Find the fastest configurations of " + k.Title,
		Long:    k.Tune.Long + "\n\n" + gridHelp,
		Example: k.Tune.Example,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context(), a) },
	}
	t.addAll(cmd.Flags())
	return cmd
}

// addAll adds the flags to f.
func (t *tuneKernel) addAll(f *pflag.FlagSet) {
	f.SortFlags = false
	t.addGrid(f)
	t.addSuite(f)
	paths := t.kernel.Impls[1:]
	f.Var(value[[]string]{Target: &t.impls, Parse: kernels.ListOf(kernels.OneOf(paths)), Kind: "PATHS"}, "impl",
		"paths, a comma list of "+strings.Join(paths, ", ")+" (default "+strings.Join(t.impls, ",")+")")
	if _, t.saves = t.flags.Suite(true)[0].(tuned); t.saves {
		f.StringVar(&t.out, "out", "", "file to write or to complete (default: the one in the user's cache folder)")
	}
	t.tuneFlags.add(f)
}

// tunables returns the problems that the flags mean. An error is a usage error.
func (t *tuneKernel) tunables(cpu bool) ([]bench.TunableOp, error) {
	ops, _, err := t.ops(cpu)
	if err != nil {
		return nil, err
	}
	var list []bench.TunableOp
	for _, op := range ops {
		one, ok := op.(bench.TunableOp)
		if !ok {
			return nil, usagef("tune %s: %s has no configurations to choose from", t.kernel.Name, op.Describe())
		}
		if a, ok := op.(*bench.AttentionOp); ok && !a.Problem().Plain() {
			return nil, usagef("tune attention: %s: the table has no rows for features", a.Describe())
		}
		list = append(list, one)
	}
	return list, nil
}

func (t *tuneKernel) run(ctx context.Context, a *app) error {
	if t.set.Changed("out") && t.out == "" {
		return usagef("--out is empty")
	}
	if err := t.tuneFlags.check(); err != nil {
		return err
	}
	if _, err := t.tunables(false); err != nil {
		return err
	}
	return t.session(a, func(s *tuneSession) error {
		list, err := t.tunables(s.env.CPU)
		switch {
		case err != nil:
			return err
		case t.dryRun:
			return s.list(list)
		case t.saves:
			return t.tuneTo(ctx, s, list)
		}
		announce(a.stderr, s.env)
		return s.tune(ctx, list)
	})
}

// tuneTo tunes into the file of t. Each problem's winners are saved at once, so that an
// interruption loses one problem at most.
func (t *tuneKernel) tuneTo(ctx context.Context, s *tuneSession, list []bench.TunableOp) (err error) {
	caps, path := s.d.Caps(), t.out
	if path == "" {
		if path, err = tuningPath(caps); err != nil {
			return fmt.Errorf("there is no folder for the results, name a file with --out: %w", err)
		}
	}
	var tuning *attention.Tuning
	err = exclusively(path, func() (err error) {
		if tuning, err = attention.LoadTuningFile(path, caps); err != nil {
			switch {
			case errors.Is(err, fs.ErrNotExist):
			case t.out != "": // which may be a file of any kind
				return fmt.Errorf("%s: %w: remove the file or name another", path, err)
			default:
				fmt.Fprintf(s.a.stderr, "flashvk: WARNING: %s is replaced: %v\n", path, err)
			}
			tuning = attention.NewTuning(caps)
		}
		return tuning.WriteFile(path) // an error comes before the work, not after it
	})
	if err != nil {
		return err
	}
	announce(s.a.stderr, s.env)
	s.keep = func(i int, winners []*bench.Trial) error {
		return exclusively(path, func() error {
			// Another process may have tuned into the file meanwhile.
			if now, err := attention.LoadTuningFile(path, caps); err == nil {
				tuning = now
			}
			for _, w := range winners {
				tuning.Add(list[i].(*bench.AttentionOp).Problem(), w.Configuration.(attention.Config), w.NS())
			}
			return tuning.WriteFile(path)
		})
	}
	if err := s.tune(ctx, list); err != nil {
		return err
	}
	_, err = fmt.Fprintf(s.a.stderr, "flashvk: wrote %s\n", path)
	return err
}
