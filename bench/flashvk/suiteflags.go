package main

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
)

// suiteFlags choose a suite instead of a problem.
type suiteFlags struct {
	suite *bench.Suite
	small bool
	naive bool
}

func (s *suiteFlags) add(f *pflag.FlagSet) {
	f.Var(value[*bench.Suite]{&s.suite, bench.ParseSuite, "NAME"}, "suite", "measure the cases of a suite in one table instead of one problem: "+suiteNames())
	boolVar(f, &s.small, "small", "the suite with sizes for a CPU device (default there)")
	boolVar(f, &s.naive, "naive", "measure a kernel without tiles, too, where it is not too slow (default in suites without --impl)")
}

func suiteNames() string {
	text := ""
	for i, s := range bench.Suites() {
		if i > 0 {
			text += ", "
		}
		text += s.Name
	}
	return text
}

// describeSuites says for help what each suite is.
func describeSuites() string {
	var b strings.Builder
	for _, s := range bench.Suites() {
		fmt.Fprintf(&b, "    %-12s %s\n", s.Name, s.About)
	}
	return b.String()
}

func (s *suiteFlags) on() bool { return s.suite != nil }

// resolve returns the suite as the other flags and the device have it. An error
// is a usage error.
func (s *suiteFlags) resolve(f *pflag.FlagSet, t dtype.DType, cpu bool) (*bench.Suite, error) {
	for _, name := range problemFlags {
		if name != "dtype" && f.Changed(name) {
			return nil, usagef("--suite %s and --%s contradict each other", s.suite.Name, name)
		}
	}
	suite := s.suite
	if f.Changed("dtype") {
		var err error
		if suite, err = suite.Retype(t); err != nil {
			return nil, usagef("--dtype %v: %w", t, err)
		}
	}
	small := cpu
	if f.Changed("small") {
		small = s.small
	}
	if small {
		suite = suite.Small()
	}
	return suite, nil
}
