package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/kernels"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/vk"
)

// kernelProblem holds the flags of the problems of a kernel.
type kernelProblem struct {
	kernel  kernels.Kernel
	flags   kernels.Flags
	set     *pflag.FlagSet
	own     []string // names of the kernel's flags
	suite   *bench.Suite
	small   bool
	grid    *grid                   // nil: sizes are no lists
	unless  func(cpu bool) []string // flags that are set unless they are given; nil: none
	tuning  *tuningFlags            // nil: the kernel has no file of tuned configurations
	presets []string                // flags that were set by unless
}

func newKernelProblem(k kernels.Kernel) kernelProblem {
	return kernelProblem{kernel: k, flags: k.New()}
}

// add adds the flags to f, without those of passes and of tuning.
func (p *kernelProblem) add(f *pflag.FlagSet) {
	p.addSizes(f)
	p.addSuite(f)
}

// addSizes adds the flags of one problem.
func (p *kernelProblem) addSizes(f *pflag.FlagSet) {
	p.set = f
	before := names(f)
	p.flags.Add(f, true)
	for _, name := range names(f) {
		if !slices.Contains(before, name) {
			p.own = append(p.own, name)
		}
	}
}

func (p *kernelProblem) addSuite(f *pflag.FlagSet) {
	var names []string
	parse := func(text string) (*bench.Suite, error) {
		for _, s := range kernels.Suites(p.flags) {
			if s.Name == text {
				return &s, nil
			}
		}
		return nil, enum.NotOneOf(names)
	}
	for _, s := range kernels.Suites(p.flags) {
		names = append(names, s.Name)
	}
	f.Var(value[*bench.Suite]{Target: &p.suite, Parse: parse, Kind: "NAME"}, "suite", "measure the cases of a suite in one table instead of one problem: "+strings.Join(names, ", "))
	kernels.BoolVar(f, &p.small, "small", "the suite with sizes for a CPU device (default there)")
}

// addGrid adds the flags of one problem, which may be lists.
func (p *kernelProblem) addGrid(f *pflag.FlagSet) {
	p.addSizes(f)
	p.grid = newGrid(f, p.own)
}

// names returns the names of flags.
func names(f *pflag.FlagSet) (list []string) {
	f.VisitAll(func(x *pflag.Flag) { list = append(list, x.Name) })
	return list
}

// addPasses adds the flags of passes to f, if the kernel has a backward pass.
func (p *kernelProblem) addPasses(f *pflag.FlagSet, passes *passFlags) {
	if bench.HasBackward(p.flags.Suite(true)[0]) {
		passes.add(f)
	}
}

// addTuning adds the flags of tuning to f, if the kernel has a file of configurations.
func (p *kernelProblem) addTuning(f *pflag.FlagSet) {
	if _, ok := p.flags.Suite(true)[0].(bench.Tuner); ok {
		p.tuning = new(tuningFlags)
		p.tuning.add(f)
	}
}

// check returns a usage error. Most mistakes show before a device is opened: a divisor of a CPU's
// default sizes also divides a GPU's.
func (p *kernelProblem) check() error {
	if p.tuning != nil {
		if err := p.tuning.check(); err != nil {
			return err
		}
	}
	_, _, err := p.ops(false)
	return err
}

// ops returns the problems to measure, and their suite, if they have one. An error is a usage
// error.
func (p *kernelProblem) ops(cpu bool) ([]bench.Op, *bench.Suite, error) {
	if p.suite == nil {
		if p.small {
			return nil, nil, usagef("--small needs --suite")
		}
		ops, err := p.problems(cpu)
		if err != nil {
			err = usageError{err}
		}
		return ops, nil, err
	}
	for _, name := range p.own {
		if p.set.Changed(name) && !slices.Contains(p.kernel.How, name) {
			return nil, nil, usagef("--suite %s and --%s contradict each other", p.suite.Name, name)
		}
	}
	small := cpu
	if p.set.Changed("small") {
		small = p.small
	}
	suite, ops, err := kernels.Cases(p.flags, *p.suite, small)
	if err != nil {
		err = usageError{err}
	}
	return ops, suite, err
}

// problems returns the problems of the flags of sizes.
func (p *kernelProblem) problems(cpu bool) ([]bench.Op, error) {
	if p.unless != nil {
		if err := p.preset(p.unless(cpu)); err != nil {
			return nil, err
		}
	}
	of := func() ([]bench.Op, error) {
		if m, ok := p.flags.(kernels.Multiple); ok {
			return m.Several(cpu)
		}
		op, err := p.flags.FromFlags(cpu)
		return []bench.Op{op}, err
	}
	if p.grid != nil {
		return p.grid.each(of)
	}
	return of()
}

// preset sets flags that the command line does not have, as in seqlen=16.
func (p *kernelProblem) preset(flags []string) error {
	for _, x := range flags {
		name, text, _ := strings.Cut(x, "=")
		if p.set.Changed(name) && !slices.Contains(p.presets, name) {
			continue
		}
		if err := p.set.Set(name, text); err != nil {
			return err
		}
		p.presets = append(p.presets, name)
	}
	return nil
}

// on returns ops for a device, with its tuning.
func (p *kernelProblem) on(stderr io.Writer, caps *vk.Caps) ([]bench.Op, *bench.Suite, error) {
	ops, suite, err := p.ops(caps.Type == vk.CPU)
	if err == nil {
		err = p.use(stderr, caps, ops)
	}
	return ops, suite, err
}

// use makes ops use the tuning of a device.
func (p *kernelProblem) use(stderr io.Writer, caps *vk.Caps, ops []bench.Op) error {
	if p.tuning == nil {
		return nil
	}
	tuning, err := p.tuning.load(stderr, caps)
	for i, op := range ops {
		if t, ok := op.(bench.Tuner); ok {
			ops[i] = t.Use(tuning)
		}
	}
	return err
}

// verdict returns an error if a path was wrong, or if a path was not measured although it was
// named, or no path was.
func verdict(results []bench.Result, named bool) error {
	measured := slices.ContainsFunc(results, func(x bench.Result) bool { return x.Status == bench.StatusOK && !x.Peer })
	for _, x := range results {
		switch {
		case x.Status == bench.StatusFailed:
			return fmt.Errorf("%s is wrong: %s", x.Impl, x.Reason)
		case x.Status == bench.StatusUnsupported && (named || !measured):
			return fmt.Errorf("%s is not supported: %s", x.Impl, x.Reason)
		}
	}
	return nil
}
