package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
)

// randomFlags are the flags of selftest for random problems.
type randomFlags struct {
	problems, workers, failures int
	seed                        uint64
	kernels                     []call.Kernel
	dtypes                      []dtype.DType
	problem, modules            string
	shrink                      time.Duration
}

const (
	// randomHang is the time after which a random problem is given up, with compilation and
	// reference.
	randomHang = 2 * time.Minute
	// softHang is the same for a software driver, which takes a minute to compile some kernels,
	// and minutes beside other work. The fixed suite waits as long there.
	softHang = 20 * time.Minute
	// randomShrink is how long a failure is shrunk.
	randomShrink = 20 * time.Second
	// randomWork is the cost of the reference of an average problem in operations, a tenth of a
	// second of a core. softWork is that on a software driver.
	randomWork, softWork = 5e7, 2e6
	// repeats is how often --problem checks its problem: a race does not show every time.
	repeats = 5
)

func (r *randomFlags) add(f *pflag.FlagSet) {
	f.IntVar(&r.problems, "random", 0, "check this many random problems of all kernels instead of the suite, or as many as --budget has time for")
	f.Uint64Var(&r.seed, "seed", 1, "seed of random problems: the same seed draws the same ones")
	f.Var(value[[]call.Kernel]{Target: &r.kernels, Parse: parseTrials, Kind: "NAMES"}, "kernel", "kernels of random problems, a comma list (default all)")
	f.Var(value[[]dtype.DType]{Target: &r.dtypes, Parse: kernels.ListOf(kernels.ParseDType), Kind: "TYPES"}, "dtype", "formats of random problems, a comma list of float16, bfloat16, float32 (default all)")
	f.IntVar(&r.workers, "workers", 0, fmt.Sprintf("random problems at a time, at most %d (default two per core)", trial.MaxWorkers))
	f.IntVar(&r.failures, "failures", 10, "stop after this many wrong random problems")
	f.DurationVar(&r.shrink, "shrink", randomShrink, "time to shrink each wrong problem")
	f.StringVar(&r.problem, "problem", "", "check one problem, as printed by a failure")
	f.StringVar(&r.modules, "modules", "", "folder of SPIR-V modules NAME.spv to test instead of the built-in ones")
}

// check returns an error of usage.
func (r *randomFlags) check(f *pflag.FlagSet) error {
	switch {
	case f.Changed("random") && r.problems <= 0:
		return usagef("--random %d is not positive", r.problems)
	case f.Changed("random") && f.Changed("problem"):
		return usagef("--random and --problem exclude each other")
	case r.shrink < 0:
		return usagef("--shrink %v is negative", r.shrink)
	case r.workers < 0:
		return usagef("--workers %d is negative", r.workers)
	case r.workers > trial.MaxWorkers:
		return usagef("--workers %d is more than %d: each worker has the memory of a problem", r.workers, trial.MaxWorkers)
	case r.failures <= 0:
		return usagef("--failures %d is not positive", r.failures)
	}
	if !f.Changed("random") {
		for _, name := range []string{"seed", "kernel", "dtype", "workers", "failures", "shrink"} {
			if f.Changed(name) {
				return usagef("--%s is for --random only", name)
			}
		}
	}
	return nil
}

// parseTrials returns the kernels of a comma list.
func parseTrials(text string) ([]call.Kernel, error) {
	var names []string
	for _, k := range call.All() {
		names = append(names, k.Name)
	}
	chosen, err := kernels.ListOf(kernels.OneOf(names))(text)
	return slices.DeleteFunc(call.All(), func(k call.Kernel) bool { return !slices.Contains(chosen, k.Name) }), err
}

// options returns the options of --random.
func (s *selftestCommand) options(caps *vk.Caps) trial.Options {
	r := &s.random
	o := trial.Options{
		Seed: r.seed, Problems: r.problems, Workers: r.workers, Failures: r.failures, Kernels: r.kernels,
		Hang: randomHang, Shrink: r.shrink, Space: call.Space{Work: randomWork, DTypes: r.dtypes},
	}
	if r.kernels == nil {
		o.Kernels = call.All()
	}
	if caps.Type == vk.CPU {
		o.Hang, o.Space.Soft, o.Space.Work = softHang, true, softWork
	}
	if s.set.Changed("budget") {
		o.Budget = s.budget
	}
	for _, i := range s.impls {
		if s.set.Changed("impl") {
			o.Space.Impls = append(o.Space.Impls, i.String())
		}
	}
	return o
}

// poisoned runs f on a device for random problems. Its scratch memory is poisoned, and it does
// not use the user's cache, which thousands of kernels would fill that nobody calls again.
// Kernels are bound to slices of buffers, and have the barriers that follow from that, as in a
// user's program; tests/conformance binds them to whole buffers. A device that hangs stays open.
func poisoned(a *app, device string, f func(d *vk.Device) error) error {
	d, err := vk.Open(vk.Options{Device: device, Name: "flashvk", PoisonScratch: trial.ScratchWord})
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
	return poisoned(a, s.device, func(d *vk.Device) (err error) {
		if err := s.locate(a.stderr, d.Caps()); err != nil {
			return err
		}
		found := tested{caps: *d.Caps()}
		bar := newProgress(a.stderr)
		found.random, err = trial.Run(ctx, d, s.options(d.Caps()), bar.step)
		bar.finish()
		if found.random == nil {
			return err
		}
		return found.write(a.stdout, s, err)
	})
}

// writeRandom prints the wrong problems, with commands that repeat them, and a summary.
func writeRandom(w io.Writer, x *trial.Result) {
	for _, f := range x.Failures {
		fmt.Fprintf(w, "WRONG    %s\n         flashvk selftest --problem '%s'\n", f.What, f.Problem)
		if f.Smallest != f.Problem {
			fmt.Fprintf(w, "smaller  %s\n         flashvk selftest --problem '%s'\n", f.Smaller, f.Smallest)
		}
	}
	fmt.Fprintln(w, x.Summary())
}

// writeTotals prints how many random problems of all seeds a record has.
func writeTotals(w io.Writer, path string) error {
	r, err := readRecord(path)
	if err != nil {
		return err
	}
	problems, failed, seeds := 0, 0, map[uint64]bool{}
	for _, x := range r.Random {
		problems, failed, seeds[x.Seed] = problems+x.Problems, failed+x.Failed, true
	}
	_, err = fmt.Fprintf(w, "the record: %d wrong of %d random problems of %d seeds\n", failed, problems, len(seeds))
	return err
}

// runProblem checks one problem.
func runProblem(ctx context.Context, a *app, text, device string) error {
	k, p, err := trial.Decode(text)
	if err != nil {
		return usagef("--problem: %v", err)
	}
	return poisoned(a, device, func(d *vk.Device) error {
		if err := trial.Supports(p, d.Caps()); err != nil {
			return err
		}
		for range repeats {
			if _, err := trial.Examine(ctx, d, k, p, false, softHang); err != nil {
				return fmt.Errorf("%s, %v: %w", k.Name, trial.Describe(p), err)
			}
		}
		fmt.Fprintf(a.stdout, "right, %d times: %s, %v\n", repeats, k.Name, trial.Describe(p))
		return nil
	})
}
