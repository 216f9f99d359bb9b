package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench/peer"
)

// peerFlags name other programs to measure.
type peerFlags struct {
	list  []peer.Peer
	limit time.Duration
}

func (p *peerFlags) add(f *pflag.FlagSet) {
	f.Var(peerList{&p.list}, "peer", "also measure another program on the same inputs: NAME=COMMAND; may be given again (see tools/peers)")
	f.DurationVar(&p.limit, "peer-time", 2*time.Minute, "time after which a peer is killed, for each problem")
}

func (p *peerFlags) check() error {
	seen := make(map[string]bool)
	for _, x := range p.list {
		if seen[x.Name] {
			return usagef("--peer %s occurs twice", x.Name)
		}
		seen[x.Name] = true
	}
	if p.limit <= 0 {
		return usagef("--peer-time %v is not positive", p.limit)
	}
	return nil
}

// peerList appends the program of each --peer.
type peerList struct{ list *[]peer.Peer }

// Set implements pflag.Value.
func (p peerList) Set(text string) error {
	x, err := peer.Parse(text)
	if err == nil {
		*p.list = append(*p.list, x)
	}
	return err
}

// String implements pflag.Value.
func (p peerList) String() string { return "" }

// Type implements pflag.Value.
func (p peerList) Type() string { return "NAME=COMMAND" }
