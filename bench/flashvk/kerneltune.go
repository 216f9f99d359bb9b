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
)

// tuneKernel holds the flags of tune NAME for a kernel of package kernels.
type tuneKernel struct {
	tuneFlags
	problem kernelProblem
}

// tunes reports whether a kernel has configurations to choose from.
func tunes(k kernels.Kernel) bool {
	_, ok := k.New().Suite(true)[0].(bench.TunableOp)
	return ok
}

func newTuneKernel(a *app, k kernels.Kernel) *cobra.Command {
	t := tuneKernel{tuneFlags: newTuneFlags(fmt.Sprintf("pipelines/%s/tuning.go", k.Name)), problem: newKernelProblem(k)}
	cmd := &cobra.Command{
		Use:   k.Name,
		Short: "Find the fastest configurations of " + k.Title,
		Long: fmt.Sprintf(`Tries configurations of %[1]s on this device: each is compiled, checked against
a float64 reference and only then timed; the best few are timed again, taking turns.
What does not compile, is wrong or does not come back is reported and dropped. Tile
sizes come first, in the order of an estimate, for as long as the budget lasts, then
the other choices around the best of them. What the built-in table takes is always
among those that are timed well.

The winner of each path is printed as a row of the built-in table. The words of the
column configuration are what bench %[1]s --config takes, and --config here says what to
look around instead of all tile sizes.

The problem, and sizes that are not given, are those of bench %[1]s; so is the suite,
of which each case has a table.`, k.Name),
		Example: fmt.Sprintf(`  flashvk tune %[1]s
  flashvk tune %[1]s --m 11000 --n 1365 --k 512 --trans nt --impl coopmat --budget 30s
  flashvk tune %[1]s --suite training --impl coopmat --format markdown
  flashvk tune %[1]s --dry-run`, k.Name),
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context(), a) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	t.problem.add(f)
	paths := k.Impls[1:]
	t.impls = paths
	parse := listOf(func(name string) (string, error) {
		if !slices.Contains(paths, name) {
			return "", errors.New("not one of " + strings.Join(paths, ", "))
		}
		return name, nil
	})
	f.Var(value[[]string]{&t.impls, parse, "PATHS"}, "impl", "paths, a comma list of "+strings.Join(paths, ", ")+" (default all)")
	t.add(f)
	return cmd
}

// problems returns what the flags mean. An error is a usage error.
func (t *tuneKernel) problems(cpu bool) ([]bench.Tunable, error) {
	ops, err := t.problem.ops(cpu)
	if err != nil {
		return nil, err
	}
	var list []bench.Tunable
	for _, op := range ops {
		one, ok := op.(bench.TunableOp)
		if !ok {
			return nil, usagef("tune %s: %s has no configurations to choose from", t.problem.kernel.Name, op.Describe())
		}
		list = append(list, bench.TuneOp(one))
	}
	return list, nil
}

func (t *tuneKernel) run(ctx context.Context, a *app) error {
	if err := t.check(); err != nil {
		return err
	}
	if _, err := t.problems(false); err != nil {
		return err
	}
	return t.session(a, func(s *tuneSession) error {
		problems, err := t.problems(s.env.CPU)
		if err != nil {
			return err
		}
		if t.dryRun {
			return s.list(problems)
		}
		announce(a.stderr, s.env)
		return s.tune(ctx, problems)
	})
}
