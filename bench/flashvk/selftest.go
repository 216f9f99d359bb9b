package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/selftest"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// selftestHang is the time after which a call is given up on a GPU, where the longest takes
// milliseconds.
const selftestHang = 20 * time.Second

// A selftestCommand holds the flags of selftest.
type selftestCommand struct {
	set    *pflag.FlagSet
	impls  []attention.Impl
	budget time.Duration
	record string // file; "": none
	share  bool
	random randomFlags
	output
}

func newSelftest(a *app) *cobra.Command {
	s := &selftestCommand{impls: attention.Impls(), budget: 4 * time.Minute}
	return a.command(&cobra.Command{
		Use:   "selftest",
		Short: "Test every path on this device",
		Long: `Runs the conformance suite on every path of the device: attention forward and backward,
decode and append, cheap cases first, on all cores. It also checks and times loops of
matrix products, multiply-adds and copies. Each path gets a verdict: right or wrong, and
whether its matrices are suspiciously slow, as where a driver emulates them.

With --random it checks random problems of all kernels instead, drawn from all that the
library accepts: forward and backward passes against float64 references, each twice, with
NaN in all memory that a kernel might read by mistake, including shared memory and
registers. A wrong problem is shrunk to a small one; --problem repeats it. One problem at
a time uses the device, so the one that loses it, or does not come back, is named. With
--budget it ends then with what it has; other seeds, with --record, go on from there.

The last line counts: 0 wrong of N.

--record writes which SPIR-V ran and whether it was right, and merges it into the record
of this device and driver: into the given file, or into the file of that name in the
given folder. --share prints verdicts, speeds, capabilities and that record as Markdown
for an issue, and nothing else about the machine.

The exit status is 1 if a path or a problem is wrong, hangs or loses the device.`,
		Example: `  flashvk selftest
  flashvk selftest --random 1000 --seed 7 --kernel attention,gemm
  flashvk selftest --impl coopmat --budget 30s --format markdown
  flashvk selftest --record conformance/
  flashvk selftest --share > issue.md`,
	}, s.add, func(ctx context.Context) error { return s.run(ctx, a) })
}

func (s *selftestCommand) add(f *pflag.FlagSet) {
	s.set = f
	var paths []string
	for _, i := range s.impls {
		paths = append(paths, i.String())
	}
	f.Var(value[[]attention.Impl]{Target: &s.impls, Parse: kernels.ListOf(oneOf(attention.ParseImpl, paths...)), Kind: "PATHS"}, "impl", "paths, a comma list of "+strings.Join(paths, ", ")+" (default all)")
	f.DurationVar(&s.budget, "budget", s.budget, "time for all of it, with --random only if it is given; what has begun comes on top")
	s.output.add(f, "or markdown", bench.Table, bench.Markdown)
	f.StringVar(&s.record, "record", "", "merge what passed into this file, or into the device's file in this folder")
	f.BoolVar(&s.share, "share", false, "print everything as Markdown for an issue")
	s.random.add(f)
}

func (s *selftestCommand) run(ctx context.Context, a *app) error {
	r, kept := &s.random, s.record != "" || s.share
	switch {
	case r.modules != "" && kept:
		return usagef("--modules tests what is not built in: --record and --share go without it")
	case r.problem != "" && kept:
		return usagef("--problem proves nothing: --record and --share go without it")
	case s.share && s.set.Changed("format"):
		return usagef("--share is Markdown: --format goes without it")
	case s.set.Changed("record") && s.record == "":
		return usagef("--record needs the name of a file or folder")
	case s.budget <= 0:
		return usagef("--budget %v is not positive", s.budget)
	}
	if err := r.check(s.set); err != nil {
		return err
	}
	if r.modules != "" {
		if err := shaders.Use(os.DirFS(r.modules)); err != nil {
			return fmt.Errorf("--modules %s: %w", r.modules, err)
		}
	}
	switch {
	case r.problem != "":
		return runProblem(ctx, a, r.problem, s.device)
	case r.problems > 0:
		return s.runRandom(ctx, a)
	}
	return s.runFixed(ctx, a)
}

// locate finds the record's file for a device, before a run of minutes, and says on w what the
// run cannot prove.
func (s *selftestCommand) locate(w io.Writer, caps *vk.Caps) (err error) {
	if s.record == "" {
		return nil
	}
	if bench.ReadBuildInfo().Commit == "" {
		fmt.Fprintln(w, "flashvk: --record: this program does not know its commit, so a module that the record has as wrong stays wrong: go build stamps a commit in a clone, not in a git worktree")
	}
	s.record, err = recordFile(s.record, caps)
	return err
}

// runFixed runs the conformance suite.
func (s *selftestCommand) runFixed(ctx context.Context, a *app) error {
	o := selftest.Options{Impls: s.impls, Budget: s.budget, Hang: selftestHang, Open: func() (*vk.Device, error) { return a.openDevice(s.device) }}
	d, err := o.Open() // its name is needed before anything runs
	if err != nil {
		return err
	}
	found := tested{caps: *d.Caps()}
	if found.caps.Type == vk.CPU {
		o.Hang = softHang
	}
	if err := d.Close(); err != nil {
		return err
	}
	if err := s.locate(a.stderr, &found.caps); err != nil {
		return err
	}
	bar := newProgress(a.stderr)
	found.fixed, err = selftest.Run(ctx, environment(&found.caps), o, bar.step)
	bar.finish()
	if err != nil && !errors.Is(err, trial.ErrHung) {
		return err
	}
	return found.write(a.stdout, s, err)
}

// A tested has the results of a self-test of a device: of the fixed suite, of random problems, or
// of both; nil was not run.
type tested struct {
	caps   vk.Caps
	fixed  *selftest.Report
	random *trial.Result
}

// record returns what the results prove.
func (t *tested) record() *conformance.Record {
	return newRecord(&t.caps, bench.ReadBuildInfo().Commit, t.fixed, t.random)
}

// write merges the record into its file and prints the results so far, each also if the other
// cannot be written, and if the run ended with an error. It returns what is wrong with the device.
func (t *tested) write(w io.Writer, s *selftestCommand, err error) error {
	if s.record != "" {
		merged := mergeRecord(s.record, t.record())
		if t.random != nil && merged == nil && !s.share {
			merged = writeTotals(w, s.record)
		}
		err = errors.Join(merged, err)
	}
	if err := errors.Join(t.print(w, s), err); err != nil {
		return err
	}
	return t.failure()
}

// print prints the results.
func (t *tested) print(w io.Writer, s *selftestCommand) error {
	if s.share {
		return t.share(w)
	}
	if t.random != nil {
		writeRandom(w, t.random)
	}
	if t.fixed == nil {
		return nil
	}
	if err := bench.WriteSheet(w, t.fixed.Sheet(), s.format, s.wide); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%s\n", t.fixed.Summary())
	return err
}

// share prints the Markdown for an issue. Of the machine it has the device, its driver and its
// speeds only: no names of hosts or users, no paths.
func (t *tested) share(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "**%s, %s**\n\n%v\n", t.caps.Name, driver(&t.caps), bench.ReadBuildInfo())
	if t.random != nil {
		b.WriteString("\n")
		writeRandom(&b, t.random)
	}
	if t.fixed != nil {
		b.WriteString("\n")
		if err := bench.WriteSheet(&b, t.fixed.Sheet(), bench.Markdown, true); err != nil {
			return err
		}
	}
	var caps strings.Builder
	describeDevice(&caps, &t.caps)
	fold(&b, foldCapabilities, "", caps.String())
	fold(&b, foldRecord, "json", string(conformance.Format(t.record())))
	_, err := io.WriteString(w, b.String())
	return err
}

// The folds of share, which the form for device records names.
const foldCapabilities, foldRecord = "Capabilities", "Record"

// fold writes text that GitHub shows on a click.
func fold(b *strings.Builder, title, language, text string) {
	fmt.Fprintf(b, "\n<details><summary>%s</summary>\n\n```%s\n%s```\n\n</details>\n", title, language, text)
}

// failure returns what is wrong with the device, or nil.
func (t *tested) failure() error {
	if t.random != nil && len(t.random.Failures) > 0 {
		return fmt.Errorf("%d of %d random problems are wrong", len(t.random.Failures), t.random.Problems)
	}
	if t.fixed == nil {
		return nil
	}
	if failed := t.fixed.Failed(); len(failed) > 0 {
		p := failed[0]
		return fmt.Errorf("%d of %d paths must not be used, the first %v %v for %v: %s: %s", len(failed), len(t.fixed.Paths), p.Impl, p.What(), p.DType, p.Verdict, p.Why)
	}
	return nil
}
