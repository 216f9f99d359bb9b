package main

import (
	"math"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
)

// closeFlags are --atol and --rtol.
type closeFlags struct {
	set      *pflag.FlagSet
	abs, rel float64
}

func (c *closeFlags) add(f *pflag.FlagSet) {
	c.set = f
	f.Float64Var(&c.abs, "atol", 0, "also demand |got-want| <= atol + rtol*|want| of each compared element, as torch.allclose; our own limits stay")
	f.Float64Var(&c.rel, "rtol", 0, "see --atol")
}

// check returns a usage error.
func (c *closeFlags) check() error {
	for name, x := range map[string]float64{"atol": c.abs, "rtol": c.rel} {
		if !(x >= 0) || math.IsInf(x, 0) {
			return usagef("--%s %v is not a finite number from 0 on", name, x)
		}
	}
	return nil
}

// tolerance returns the tolerance of the flags, or nil.
func (c *closeFlags) tolerance() *bench.Tolerance {
	if !c.set.Changed("atol") && !c.set.Changed("rtol") {
		return nil
	}
	return &bench.Tolerance{Abs: c.abs, Rel: c.rel}
}
