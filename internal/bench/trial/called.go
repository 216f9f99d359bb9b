package trial

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A called is a call as a Problem. Its JSON is that of the call.
type called struct{ call.Call }

// described returns the Kernel of a described one.
func described(k call.Kernel) Kernel {
	return Kernel{
		Name: k.Name, Weight: k.Weight, New: func() Problem { return &called{k.New()} },
		Draw: func(family, rng *rand.Rand, s call.Space) Problem {
			if c := k.Draw(family, rng, s); c != nil {
				return &called{c}
			}
			return nil
		},
	}
}

// String implements Problem.
func (p *called) String() string { return fmt.Sprintf("%v %v", p.Call, p.Pass()) }

// MarshalJSON implements json.Marshaler.
func (p *called) MarshalJSON() ([]byte, error) { return json.Marshal(p.Call) }

// UnmarshalJSON implements json.Unmarshaler.
func (p *called) UnmarshalJSON(text []byte) error { return strictly(text, p.Call) }

// Supports implements Problem.
func (p *called) Supports(caps *vk.Caps) error {
	_, err := p.Choose(caps, p.Pass())
	return err
}

// Check implements Problem.
func (p *called) Check(ctx context.Context, r *Runner) error {
	if c, ok := p.Call.(interface{ Close() }); ok {
		defer c.Close()
	}
	x := call.Inputs(p.Call)
	if first, ok := p.Call.(interface{ First() call.Call }); ok && first.First() != nil {
		c, record, err := call.Case(r.Device().Caps(), first.First(), kit.Forward, x)
		if err != nil {
			return err
		}
		saved, err := c.Outputs(ctx, r.Guard(), r.poisoned(record))
		if err != nil {
			return fmt.Errorf("the forward pass before: %w", err)
		}
		maps.Copy(x, saved)
	}
	c, record, err := call.Case(r.Device().Caps(), p.Call, p.Pass(), x)
	if err != nil {
		return err
	}
	return r.Check(ctx, c, record)
}

// Check runs a case, with poison before each call.
func (r *Runner) Check(ctx context.Context, c guard.Case, record guard.Record) error {
	_, err := c.CheckContext(ctx, r.Guard(), r.poisoned(record))
	return err
}

// poisoned records poison before a call.
func (r *Runner) poisoned(record guard.Record) guard.Record {
	return func(c *vk.Cmd, t map[string]vk.Tensor) error {
		return r.Record(c, func(c *vk.Cmd) error { return record(c, t) })
	}
}

// Smaller implements Problem.
func (p *called) Smaller() (list []Problem) {
	for _, c := range call.Smaller(p.Call) {
		list = append(list, &called{c})
	}
	return list
}
