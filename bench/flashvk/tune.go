package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/vk"
)

func newTune(a *app) *cobra.Command {
	return kernelCommands("tune KERNEL", "Find the fastest configurations of a kernel on this device", func(k kernels.Kernel) *cobra.Command {
		if k.Tune == nil {
			return nil
		}
		return newTuneKernel(a, k)
	})
}

// tuneFlags are the flags that say how to search.
type tuneFlags struct {
	table  string // file of the built-in table
	impls  []string
	budget time.Duration
	dryRun bool
	format bench.Format
	device string
}

// tuneFormats are those that tune writes.
var tuneFormats = []bench.Format{bench.Table, bench.Markdown, bench.Benchfmt}

// add adds the flags to f, but for paths.
func (t *tuneFlags) add(f *pflag.FlagSet) {
	f.DurationVar(&t.budget, "budget", time.Minute, "time for trying candidates, for each problem; timing them comes on top")
	f.BoolVar(&t.dryRun, "dry-run", false, "list the candidates, in the order in which they would be tried, and stop")
	f.Var(value[bench.Format]{Target: &t.format, Parse: parseFormat, Kind: "FORMAT"}, "format", "table (default), markdown, or benchfmt, which has the samples of the finalists")
	deviceVar(f, &t.device)
}

// check returns a usage error if the flags are wrong.
func (t *tuneFlags) check() error {
	switch {
	case !slices.Contains(tuneFormats, t.format):
		return usagef("--format %s is not one of %s", t.format, bench.FormatNames(tuneFormats))
	case t.budget <= 0:
		return usagef("--budget %v is not positive", t.budget)
	}
	return nil
}

// openTuned opens the device without a cache of pipelines on disk: most of
// what is compiled here is never needed again.
func openTuned(name string) (*vk.Device, error) {
	return vk.Open(vk.Options{Device: name, Name: "flashvk"})
}

// tuneSession is one run of a command of tune.
type tuneSession struct {
	*tuneFlags
	a      *app
	d      *vk.Device
	caps   *vk.Caps // of d, also after it was lost
	env    bench.Environment
	search bench.Search
	keep   func(i int, winners []*bench.Trial) error // of problem i; nil: they are printed only
}

// session opens the device for run.
func (t *tuneFlags) session(a *app, run func(s *tuneSession) error) (err error) {
	s := tuneSession{tuneFlags: t, a: a}
	if s.d, err = openTuned(t.device); err != nil {
		return err
	}
	defer func() {
		if !errors.Is(err, bench.ErrHung) { // closing would wait for it
			err = errors.Join(err, s.d.Close())
		}
	}()
	s.caps = s.d.Caps()
	s.env = environment(s.caps)
	s.search = bench.DefaultSearch(s.env.CPU, t.impls, t.budget)
	return run(&s)
}

// list writes the candidates of each problem.
func (s *tuneSession) list(problems []bench.TunableOp) error {
	for _, p := range problems {
		var reason error
		found := false
		fmt.Fprintf(s.a.stdout, "%s\n", bench.Title(p, bench.Forward))
		for _, impl := range s.search.Impls {
			list, err := p.Candidates(s.d.Caps(), impl)
			reason = cmp.Or(reason, err)
			for _, c := range list {
				found = true
				if _, err := fmt.Fprintf(s.a.stdout, "   %v\n", c); err != nil {
					return err
				}
			}
		}
		if !found {
			return reason
		}
	}
	return nil
}

// tune works through the problems. What is known is written even if it is cut short.
func (s *tuneSession) tune(ctx context.Context, problems []bench.TunableOp) error {
	var done []bench.Tuned
	var err error
	for i, p := range problems {
		fmt.Fprintf(s.a.stderr, "flashvk: problem %d of %d: %s\n", i+1, len(problems), bench.Title(p, bench.Forward))
		var tuned bench.Tuned
		if tuned, err = s.one(ctx, p); err == nil {
			err = s.accept(i, tuned)
		}
		if len(tuned.Trials) > 0 && s.format != bench.Benchfmt {
			if i > 0 {
				fmt.Fprintln(s.a.stdout)
			}
			err = errors.Join(err, bench.WriteSheet(s.a.stdout, tuned.Sheet(), s.format))
		}
		if err != nil {
			break
		}
		done = append(done, tuned)
	}
	if len(done) == 0 {
		return err
	}
	return errors.Join(err, s.summary(done))
}

// accept keeps the winners of problem i.
func (s *tuneSession) accept(i int, tuned bench.Tuned) error {
	winners := tuned.Winners()
	if len(winners) == 0 {
		return fmt.Errorf("no candidate of %s is right: the first failed with: %s", bench.Title(tuned.Of, bench.Forward), tuned.Trials[0].Reason)
	}
	if s.keep == nil {
		return nil
	}
	return s.keep(i, winners)
}

// summary writes the rows of the built-in table, or the benchmark lines.
func (s *tuneSession) summary(done []bench.Tuned) error {
	if s.format == bench.Benchfmt {
		report := bench.Report{Env: s.env}
		for _, tuned := range done {
			report.Results = append(report.Results, tuned.Results()...)
		}
		return report.Write(s.a.stdout, s.format)
	}
	rows := strings.Join(bench.TableRows(s.caps, done), "\n")
	if s.format == bench.Markdown {
		rows = "\n```go\n" + rows + "\n```"
	}
	_, err := fmt.Fprintf(s.a.stdout, "\nrows for %s, measured on %v\n%s\n", s.table, s.env, rows)
	return err
}

// maxLost bounds how often a search starts again without the candidate that
// the device was lost in.
const maxLost = 5

// one searches for the best configurations of p. If the device is lost, it is
// opened again, and the candidate left out.
func (s *tuneSession) one(ctx context.Context, p bench.TunableOp) (bench.Tuned, error) {
	for lost := 0; ; lost++ {
		bar := newProgress(s.a.stderr)
		tuned, err := bench.Tune(ctx, s.d, p, s.search, bar.step)
		bar.finish()
		var fault *bench.LostError
		if !errors.As(err, &fault) || !errors.Is(err, vk.ErrDeviceLost) || lost == maxLost {
			return tuned, err
		}
		fmt.Fprintf(s.a.stderr, "flashvk: WARNING: %v is left out: %v\n", fault.Config, fault.Err)
		s.search.Skip = append(s.search.Skip, fault.Config)
		s.d.Close() // its errors follow from the loss
		if s.d, err = openTuned(s.device); err != nil {
			s.d = nil
			return tuned, err
		}
	}
}
