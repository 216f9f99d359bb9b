package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/selftest"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

const (
	// fixedHang is the time after which a call is given up on a GPU, where the longest takes
	// milliseconds.
	fixedHang = 20 * time.Second
	// randomHang is the time after which a random problem is given up, with compilation and
	// reference.
	randomHang = 2 * time.Minute
	// softHang is both for a software driver, which takes a minute to compile some kernels, and
	// minutes beside other work.
	softHang = 20 * time.Minute
	// randomWork is the cost of the reference of an average problem in operations, a tenth of a
	// second of a core. softWork is the cost on a software driver.
	randomWork, softWork = 5e7, 2e6
	// repeats is how often --problem checks its problem: a race does not show every time.
	repeats = 5
)

// A selftestCommand holds the flags of selftest.
type selftestCommand struct {
	set              *pflag.FlagSet
	impls            []attention.Impl
	budget           time.Duration
	record           string // file; "": none
	share            bool
	problem, modules string
	random           trial.Options
	output
}

func newSelftest(a *app) *cobra.Command {
	s := &selftestCommand{impls: attention.Impls(), random: trial.Options{Kernels: call.All()}}
	return a.command(&cobra.Command{Use: "selftest"}, s.add, func(ctx context.Context) error { return s.run(ctx, a) })
}

func (s *selftestCommand) add(f *pflag.FlagSet) {
	s.set = f
	var paths, names []string
	for _, i := range s.impls {
		paths = append(paths, i.String())
	}
	for _, k := range s.random.Kernels {
		names = append(names, k.Name)
	}
	parseKernels := func(text string) ([]call.Kernel, error) {
		chosen, err := kernels.ListOf(kernels.OneOf(names))(text)
		return slices.DeleteFunc(call.All(), func(k call.Kernel) bool { return !slices.Contains(chosen, k.Name) }), err
	}
	f.Var(value[[]attention.Impl]{Target: &s.impls, Parse: kernels.ListOf(oneOf(attention.ParseImpl, paths...)), Kind: "PATHS"}, "impl", "paths, a comma list of "+strings.Join(paths, ", ")+" (default all)")
	f.DurationVar(&s.budget, "budget", 4*time.Minute, "time for all of it, with --random only if it is given; what has begun comes on top")
	s.output.add(f, "or markdown", bench.Table, bench.Markdown)
	f.StringVar(&s.record, "record", "", "merge what passed into this file, or into the device's file in this folder")
	f.BoolVar(&s.share, "share", false, "print everything as Markdown for an issue")
	f.IntVar(&s.random.Problems, "random", 0, "check this many random problems of all kernels instead of the suite, or as many as --budget has time for")
	f.Uint64Var(&s.random.Seed, "seed", 1, "seed of random problems: the same seed draws the same ones")
	f.Var(value[[]call.Kernel]{Target: &s.random.Kernels, Parse: parseKernels, Kind: "NAMES"}, "kernel", "kernels of random problems, a comma list (default all)")
	f.Var(value[[]dtype.DType]{Target: &s.random.Space.DTypes, Parse: kernels.ListOf(kernels.ParseDType), Kind: "TYPES"}, "dtype", "formats of random problems, a comma list of float16, bfloat16, float32 (default all)")
	f.StringVar(&s.random.Module, "module", "", "only random problems whose plan has this module, such as gemm_coopmat.f16 (default all)")
	f.IntVar(&s.random.Workers, "workers", 0, "random problems at a time (default two per core)")
	f.IntVar(&s.random.Failures, "failures", 10, "stop after this many wrong random problems")
	f.DurationVar(&s.random.Shrink, "shrink", 20*time.Second, "time to shrink each wrong problem")
	f.StringVar(&s.problem, "problem", "", "check one problem, as printed by a failure")
	f.StringVar(&s.modules, "modules", "", "folder of SPIR-V modules NAME.spv to test instead of the built-in ones")
}

// check returns a usage error.
func (s *selftestCommand) check() error {
	f := s.set
	for _, name := range []string{"seed", "kernel", "dtype", "module", "workers", "failures", "shrink"} {
		if f.Changed(name) && !f.Changed("random") {
			return usagef("--%s is for --random only", name)
		}
	}
	switch {
	case f.Changed("record") && s.record == "":
		return usagef("--record needs the name of a file or folder")
	case s.budget <= 0:
		return usagef("--budget %v is not positive", s.budget)
	case s.random.Shrink < 0:
		return usagef("--shrink %v is negative", s.random.Shrink)
	}
	return cmp.Or(
		exclusive(f, "modules", "record"), exclusive(f, "modules", "share"), exclusive(f, "problem", "record"),
		exclusive(f, "problem", "share"), exclusive(f, "share", "format"), exclusive(f, "random", "problem"),
		checkRange(f, "random", s.random.Problems, 1, math.MaxInt32), checkRange(f, "failures", s.random.Failures, 1, math.MaxInt32),
		checkRange(f, "workers", s.random.Workers, 0, trial.MaxWorkers),
	)
}

func (s *selftestCommand) run(ctx context.Context, a *app) error {
	if err := s.check(); err != nil {
		return err
	}
	if s.modules != "" {
		if err := shaders.Use(os.DirFS(s.modules)); err != nil {
			return fmt.Errorf("--modules %s: %w", s.modules, err)
		}
	}
	switch {
	case s.problem != "":
		return s.runProblem(ctx, a)
	case s.random.Problems > 0:
		return s.runRandom(ctx, a)
	}
	return s.runFixed(ctx, a)
}

// locate finds the record's file for a device, before a run of minutes, and says what the run cannot
// prove.
func (s *selftestCommand) locate(a *app, caps *vk.Caps) error {
	if s.record == "" {
		return nil
	}
	if bench.ReadBuildInfo().Commit == "" {
		fmt.Fprintln(a.stderr, "flashvk: --record: this program does not know its commit, so a module that the record has as wrong stays wrong: go build stamps a commit in a clone, not in a git worktree")
	}
	path, err := conformance.File(s.record, conformance.New(caps))
	if err != nil {
		return fmt.Errorf("--record %s: %w", s.record, err)
	}
	s.record = path
	return nil
}

// runFixed runs the conformance suite.
func (s *selftestCommand) runFixed(ctx context.Context, a *app) error {
	o := selftest.Options{Impls: s.impls, Budget: s.budget, Hang: fixedHang, Open: func() (*vk.Device, error) { return a.openDevice(s.device) }}
	d, err := o.Open() // its name is needed before anything runs
	if err != nil {
		return err
	}
	caps := *d.Caps()
	if caps.Type == vk.CPU {
		o.Hang = softHang
	}
	if err := cmp.Or(d.Close(), s.locate(a, &caps)); err != nil {
		return err
	}
	bar := newProgress(a.stderr)
	x, err := selftest.Run(ctx, environment(&caps), o, bar.step)
	bar.finish()
	if err != nil && !errors.Is(err, trial.ErrHung) {
		return err
	}
	return s.finish(a, &caps, x.Record, func(w io.Writer) error {
		if s.share {
			return bench.WriteSheet(w, x.Sheet(), bench.Markdown, true)
		}
		return cmp.Or(bench.WriteSheet(w, x.Sheet(), s.format, s.wide), writeLine(w, "\n"+x.Summary()))
	}, x.Err(), err)
}

func writeLine(w io.Writer, text string) error {
	_, err := fmt.Fprintln(w, text)
	return err
}

// finish merges the run into the record's file and prints the results so far, each also if the
// other cannot be written, and if err cut the run short. Otherwise finish returns wrong, the
// device's faults.
func (s *selftestCommand) finish(a *app, caps *vk.Caps, ran *conformance.Record, print func(w io.Writer) error, wrong, err error) error {
	ran.At(bench.ReadBuildInfo().Commit)
	if s.share {
		err = errors.Join(a.writeIssue(caps, print, text.FoldRecord, conformance.Format(ran)), err)
	}
	if s.record != "" {
		all, merged := conformance.MergeFile(s.record, ran)
		if merged != nil {
			merged = fmt.Errorf("--record %s: %w", s.record, merged)
		} else if len(all.Random) > 0 && s.random.Problems > 0 && !s.share {
			merged = writeTotals(a.stdout, all)
		}
		err = errors.Join(merged, err)
	}
	if !s.share {
		err = errors.Join(print(a.stdout), err)
	}
	return cmp.Or(err, wrong)
}

// writeTotals prints how many random problems of all seeds a record has.
func writeTotals(w io.Writer, r *conformance.Record) error {
	problems, failed, seeds := 0, 0, map[uint64]bool{}
	for _, x := range r.Random {
		problems, failed, seeds[x.Seed] = problems+x.Problems, failed+x.Failed, true
	}
	return writeLine(w, fmt.Sprintf("the record: %d wrong of %d random problems of %d seeds", failed, problems, len(seeds)))
}

// An issue begins with text for people, the last of which is a fold that the form for device records names.
// GitHub takes at most maxIssue characters.
const foldCapabilities, maxIssue = "Capabilities", 65536

// writeIssue prints the Markdown for an issue, with data in the fold of a title. Of the machine it has the
// device, its driver and its speeds only: no names of hosts or users, no paths.
func (a *app) writeIssue(caps *vk.Caps, print func(w io.Writer) error, title string, data []byte) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "**%s, %s**\n\n%v\n\n", caps.Name, driver(caps), bench.ReadBuildInfo())
	device, err := json.Marshal(caps)
	if err = cmp.Or(err, print(&b)); err != nil {
		return err
	}
	var about strings.Builder
	describeDevice(&about, caps)
	b.WriteString(text.Fold(foldCapabilities, "", about.String()) + text.Fold(text.FoldDevice, "json", string(device)+"\n") + text.Fold(title, "json", string(data)))
	if b.Len() > maxIssue {
		fmt.Fprintf(a.stderr, "flashvk: WARNING: %d characters are more than the %d of an issue: attach them as a file\n", b.Len(), maxIssue)
	}
	_, err = b.WriteTo(a.stdout)
	return err
}

// poisoned runs f on a device for random problems. Its scratch memory is poisoned, and it does
// not use the user's cache, which thousands of kernels would fill that nobody calls again.
// Kernels are bound to slices of buffers, and have the barriers that follow from that, as in a
// user's program; tests/conformance binds them to whole buffers. A device that hangs stays open.
func (s *selftestCommand) poisoned(a *app, f func(d *vk.Device) error) error {
	d, err := vk.Open(vk.Options{Device: s.device, Name: "flashvk", PoisonScratch: trial.ScratchWord})
	if err != nil {
		return err
	}
	announce(a.stderr, environment(d.Caps()))
	if err = f(d); errors.Is(err, trial.ErrHung) {
		return err
	}
	return errors.Join(err, d.Close())
}

// runRandom checks random problems and reports those that are wrong.
func (s *selftestCommand) runRandom(ctx context.Context, a *app) error {
	o := s.random
	o.Hang, o.Space.Work = randomHang, randomWork
	if o.Module != "" {
		kernel, format, _ := strings.Cut(o.Module, ".")
		if _, err := shaders.Get(kernel, format); err != nil {
			return usagef("--module: %v", err)
		}
	}
	if s.set.Changed("budget") {
		o.Budget = s.budget
	}
	for _, i := range s.impls {
		if s.set.Changed("impl") {
			o.Space.Impls = append(o.Space.Impls, i.String())
		}
	}
	return s.poisoned(a, func(d *vk.Device) (err error) {
		if err := s.locate(a, d.Caps()); err != nil {
			return err
		}
		if d.Caps().Type == vk.CPU {
			o.Hang, o.Space.Soft, o.Space.Work = softHang, true, softWork
		}
		bar := newProgress(a.stderr)
		x, err := trial.Run(ctx, d, o, bar.step)
		bar.finish()
		if x == nil {
			return err
		}
		return s.finish(a, d.Caps(), x.Record, x.Write, x.Err(), err)
	})
}

// runProblem checks one problem.
func (s *selftestCommand) runProblem(ctx context.Context, a *app) error {
	k, p, err := trial.Decode(s.problem)
	if err != nil {
		return usagef("--problem: %v", err)
	}
	return s.poisoned(a, func(d *vk.Device) error {
		if err := call.Supports(p, d.Caps()); err != nil {
			return err
		}
		for range repeats {
			if _, err := trial.Examine(ctx, d, k, p, false, softHang); err != nil {
				return fmt.Errorf("%s, %v %v: %w", k.Name, p, p.Pass(), err)
			}
		}
		return writeLine(a.stdout, fmt.Sprintf("right, %d times: %s, %v %v", repeats, k.Name, p, p.Pass()))
	})
}
