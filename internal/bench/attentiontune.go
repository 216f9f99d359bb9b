package bench

import (
	"fmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/vk"
)

// Tunables implements Tuner. Each pass has its own configurations.
func (o *AttentionOp) Tunables(_ *vk.Caps, p Pass) ([]Tunable, error) {
	if !o.p.Plain() {
		return nil, fmt.Errorf("attention: %s: the table has no rows for features", o.Describe())
	}
	if p == Backward {
		return []Tunable{attentionChoices(o, p, func(with *AttentionOp, c *attention.BackwardConfig) attention.Impl {
			with.backward = c
			return c.Impl
		})}, nil
	}
	return []Tunable{attentionChoices(o, p, func(with *AttentionOp, c *attention.Config) attention.Impl {
		with.config = c
		return c.Impl
	})}, nil
}

// attentionChoices returns the choices of a pass. Use gives an Op a configuration, and returns the
// path of that.
func attentionChoices[C Candidate](o *AttentionOp, p Pass, use func(with *AttentionOp, c *C) attention.Impl) Tunable {
	x := ChoicesOf("attention", o, p, o.p, func(c C) Op {
		with := *o
		use(&with, &c)
		return &with
	})
	// The comment names the format, which rows of scalar do not.
	source := x.Source
	x.Source = func(caps *vk.Caps, p attention.Problem, c C, fill float64) string {
		return fmt.Sprintf("%s // %v", source(caps, p, c, fill), p.DType)
	}
	// Causal rows come first, since the others match causal problems, too.
	x.Sort = func(c C) []int {
		all := 1
		if o.p.Causal {
			all = 0
		}
		with := *o
		return []int{int(use(&with, &c)), int(o.p.DType), o.p.HeadDim, all}
	}
	return x.Tunable()
}
