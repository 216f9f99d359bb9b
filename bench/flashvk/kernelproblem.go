package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/bench/kernels"
)

// kernelProblem holds the flags that say what of a kernel of package kernels is measured.
type kernelProblem struct {
	kernel kernels.Kernel
	flags  kernels.Flags
	set    *pflag.FlagSet
	own    []string // names of the kernel's flags
	suite  string
	small  bool
}

func newKernelProblem(k kernels.Kernel) kernelProblem {
	return kernelProblem{kernel: k, flags: k.New()}
}

// add adds the flags to f.
func (p *kernelProblem) add(f *pflag.FlagSet) {
	p.set = f
	p.flags.Add(f, true)
	f.VisitAll(func(x *pflag.Flag) { p.own = append(p.own, x.Name) })
	f.StringVar(&p.suite, "suite", "", "measure the cases of a suite instead: "+bench.TrainingSuite+", the shapes of a training step")
	f.BoolVar(&p.small, "small", false, "with --suite: small cases of its kind, as on a CPU device")
}

// addPasses adds the flags of passes to f, if the kernel has a backward pass.
func (p *kernelProblem) addPasses(f *pflag.FlagSet, passes *passFlags) {
	if bench.HasBackward(p.flags.Suite(true)[0]) {
		passes.add(f)
		f.Lookup("backward").Usage = "measure the backward pass instead: the gradients"
	}
}

// kernelImplVar adds a flag for one path of k.
func kernelImplVar(f *pflag.FlagSet, to *string, k kernels.Kernel, usage string) {
	names := strings.Join(k.Impls, ", ")
	parse := func(text string) (string, error) {
		if !slices.Contains(k.Impls, text) {
			return "", errors.New("not one of " + names)
		}
		return text, nil
	}
	f.Var(value[string]{to, parse, "PATH"}, "impl", usage+": "+names+" (default auto)")
}

// ops returns what to measure. An error is a usage error.
func (p *kernelProblem) ops(cpu bool) ([]bench.Op, error) {
	if p.suite == "" {
		if p.small {
			return nil, usagef("--small needs --suite")
		}
		op, err := p.flags.FromFlags(cpu)
		if err != nil {
			return nil, usageError{err}
		}
		return []bench.Op{op}, nil
	}
	if bench.SuiteName(p.suite) != bench.TrainingSuite {
		return nil, usagef("--suite %s is not %s", p.suite, bench.TrainingSuite)
	}
	for _, name := range p.own {
		if p.set.Changed(name) && !slices.Contains(p.kernel.How, name) {
			return nil, usagef("--suite %s and --%s contradict each other", p.suite, name)
		}
	}
	return p.flags.Suite(cpu || p.small), nil
}
