package main

import (
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/peer"
)

// passFlags choose the pass.
type passFlags struct{ backward, both bool }

func (p *passFlags) add(f *pflag.FlagSet) {
	f.BoolVar(&p.backward, "backward", false, "measure the backward pass instead: the gradients")
	f.BoolVar(&p.both, "both", false, "measure the forward pass followed by the backward pass as one call; with peers also each pass alone")
}

// check returns a usage error if the flags contradict each other.
func (p *passFlags) check(peers []peer.Peer) error {
	switch {
	case p.backward && p.both:
		return usagef("--backward and --both contradict each other")
	case p.both && len(peers) > 0:
		return usagef("--both and --peer contradict each other: a sweep has one kernel, and a peer measures one pass")
	}
	return nil
}

func (p *passFlags) pass() bench.Pass {
	switch {
	case p.backward:
		return bench.Backward
	case p.both:
		return bench.Both
	}
	return bench.Forward
}
