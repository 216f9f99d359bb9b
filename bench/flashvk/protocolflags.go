package main

import (
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
)

// protocolFlags say how much to measure.
type protocolFlags struct {
	set                  *pflag.FlagSet
	warmup, iters, count int
}

func (p *protocolFlags) add(f *pflag.FlagSet) {
	p.set = f
	intVar(f, &p.warmup, "warmup", "least warm-up calls of each path; the warm-up also lasts until the clock has settled")
	intVar(f, &p.iters, "iters", "timed calls of each path, spread over the samples (default: as many as take some milliseconds per sample)")
	intVar(f, &p.count, "count", "samples of each path (default 10)")
}

// maxCount is the largest --count: a day of samples.
const maxCount = 100_000

// check returns a usage error for a number of calls that is out of range.
func (p *protocolFlags) check() error {
	for _, n := range []struct {
		name  string
		n     int
		least int
	}{{"warmup", p.warmup, 0}, {"iters", p.iters, 1}, {"count", p.count, 1}} {
		if p.set.Changed(n.name) && n.n < n.least {
			return usagef("--%s %d is less than %d", n.name, n.n, n.least)
		}
	}
	if p.count > maxCount {
		return usagef("--count %d is more than %d", p.count, maxCount)
	}
	if samples := p.protocol(false).Samples; p.iters > samples*bench.MaxBatchCalls {
		return usagef("--iters %d is more than %d in each of %d samples", p.iters, bench.MaxBatchCalls, samples)
	}
	return nil
}

// protocol returns the protocol of the flags.
func (p *protocolFlags) protocol(cpu bool) bench.Protocol {
	pr := bench.DefaultProtocol(cpu)
	if p.set.Changed("count") {
		pr.Samples = p.count
	}
	pr.Warmup, pr.Iters = p.warmup, p.iters
	return pr
}
