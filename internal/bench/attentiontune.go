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
		return []Tunable{attentionChoices(o, p, attentionSide[attention.BackwardConfig]{
			candidates: attention.BackwardCandidates, variants: attention.BackwardVariants,
			row: attention.BackwardTableRow, fill: attention.BackwardConfig.Fill,
			impl: func(c attention.BackwardConfig) attention.Impl { return c.Impl },
			use:  func(with *AttentionOp, c *attention.BackwardConfig) { with.backward = c },
		})}, nil
	}
	return []Tunable{attentionChoices(o, p, attentionSide[attention.Config]{
		candidates: attention.Candidates, variants: attention.Variants,
		row: attention.TableRow, fill: attention.Config.Fill,
		impl: func(c attention.Config) attention.Impl { return c.Impl },
		use:  func(with *AttentionOp, c *attention.Config) { with.config = c },
	})}, nil
}

// attentionSide has the functions of package attention for the configurations of a pass.
type attentionSide[C Candidate] struct {
	candidates func(caps *vk.Caps, p attention.Problem, impl attention.Impl) []C
	variants   func(caps *vk.Caps, p attention.Problem, c C) []C
	row        func(caps *vk.Caps, p attention.Problem, c C, fill float64) string
	fill       func(c C, caps *vk.Caps, p attention.Problem) float64
	impl       func(c C) attention.Impl
	use        func(with *AttentionOp, c *C)
}

// attentionChoices returns the choices of a pass.
func attentionChoices[C Candidate](o *AttentionOp, p Pass, side attentionSide[C]) Tunable {
	return &Choices[attention.Problem, C]{
		Of: o, Side: p, Kernel: "attention", KernelPass: p.Kit(), Problem: o.p,
		PathOf: func(c C) string { return side.impl(c).String() },
		List: func(caps *vk.Caps, impl string) ([]C, error) {
			i, err := attention.ParseImpl(impl)
			if err == nil {
				err = attention.Supports(caps, o.p, p.Kit(), attention.Options{Impl: i})
			}
			if err != nil {
				return nil, err
			}
			return side.candidates(caps, o.p, i), nil
		},
		Vary: func(caps *vk.Caps, c C) []C { return side.variants(caps, o.p, c) },
		Use: func(c C) Op {
			with := *o
			side.use(&with, &c)
			return &with
		},
		// The comment names the format, which rows of scalar do not.
		Source: func(caps *vk.Caps, c C, fill float64) string {
			return fmt.Sprintf("%s // %v", side.row(caps, o.p, c, fill), o.p.DType)
		},
		FillOf: func(caps *vk.Caps, c C) float64 { return side.fill(c, caps, o.p) },
		// Causal rows come first, since the others match causal problems, too.
		Sort: func(c C) []int {
			all := 1
			if o.p.Causal {
				all = 0
			}
			return []int{int(side.impl(c)), int(o.p.DType), o.p.HeadDim, all}
		},
	}
}
