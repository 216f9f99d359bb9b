package bench

import (
	"fmt"

	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Tuner is an Op with configurations to choose from.
type Tuner interface {
	Op
	// Use returns the Op with the rows of tuning, which may be nil.
	Use(tuning *kit.Tuning) Op
	// Tunables returns what can be tuned of a pass: the pass, or the products that it consists of
	// on the device. An error says what cannot be tuned. Caps are nil where there is no device;
	// the error is the same then.
	Tunables(caps *vk.Caps, p Pass) ([]Tunable, error)
}

// A Candidate is a configuration that a search tries, such as an attention.Config. Candidates are
// compared with ==.
type Candidate = table.Config

// A Tunable is a pass of a problem with configurations to choose from.
type Tunable struct {
	table.Space
	Op   Op
	Pass Pass
	With func(c Candidate) Op // returns the Op with c
}

// Keep adds c to the tuning of the device, with the device time of a call.
func (t *Tunable) Keep(to *kit.Tuning, c Candidate, ns float64) error {
	if err := t.Space.Keep((*table.Tuning)(to), c, ns); err != nil {
		return fmt.Errorf("bench: %v: %w", c, err)
	}
	return nil
}
