package trial

import (
	"context"
	"fmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/attention/ondevice"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// attentionKernel draws problems of both passes of attention, which are checked as the
// cases of attntest are.
//
//	attention.go          the problem and its check
//	attention_draw.go     what a family is: path, format, head_dim, features, configuration
//	attention_sizes.go    sizes
//	attention_data.go     layouts and values
//	attention_smaller.go  steps to a smaller problem
func attentionKernel() Kernel {
	return Kernel{
		Name:   "attention",
		Weight: 8, // half of all modules are its
		New:    func() Problem { return new(attentionProblem) },
		Draw:   drawAttention,
	}
}

// attentionProblem is a call of one of the passes.
type attentionProblem struct {
	Impl     attention.Impl
	Backward bool
	Case     attntest.Case
	// The configuration of the pass; nil: the tuning table's.
	Config         *attention.Config         `json:",omitempty"`
	BackwardConfig *attention.BackwardConfig `json:",omitempty"`
	DecodeConfig   *attention.DecodeConfig   `json:",omitempty"` // not nil: the forward pass takes the kernels of decode
}

// String implements Problem.
func (p *attentionProblem) String() string {
	if p.Backward {
		s := fmt.Sprintf("backward %v %v", p.Impl, p.Case.BackwardString())
		if p.BackwardConfig != nil {
			s += fmt.Sprintf(" config=(%v)", p.BackwardConfig)
		}
		return s
	}
	s := fmt.Sprintf("forward %v %v", p.Impl, &p.Case)
	if p.Config != nil {
		s += fmt.Sprintf(" config=(%v)", p.Config)
	}
	if p.DecodeConfig != nil {
		s += fmt.Sprintf(" config=(decode %v)", p.DecodeConfig)
	}
	return s
}

// options returns the options of a call, without the workspace.
func (p *attentionProblem) options() attention.Options {
	return attention.Options{Impl: p.Impl, Config: p.Config, BackwardConfig: p.BackwardConfig, DecodeConfig: p.DecodeConfig}
}

// Supports implements Problem.
func (p *attentionProblem) Supports(caps *vk.Caps) error {
	var err error
	if p.Backward {
		_, err = attention.Choose(caps, p.Case.Problem, kit.Backward, p.options())
	} else {
		_, err = attention.Choose(caps, p.Case.Problem, kit.Forward, p.options())
	}
	return err
}

// Check implements Problem.
func (p *attentionProblem) Check(ctx context.Context, r *Runner) error {
	if err := p.Case.Problem.Validate(); err != nil {
		return err
	}
	kernel := func(opt attention.Options) *ondevice.Kernel {
		return &ondevice.Kernel{Context: ctx, Device: r.Guard(), Options: opt, Record: r.Record}
	}
	// O and LSE of a backward problem come from the table's configuration of the path.
	return p.check(kernel(attention.Options{Impl: p.Impl, Config: p.Config}), kernel(p.options()))
}

// check is Check of any implementation.
func (p *attentionProblem) check(forward attntest.Forwarder, backward attntest.Backwarder) error {
	if p.Backward {
		_, err := attntest.NewBackwardSuiteOf(forward, &p.Case).Check(&p.Case, backward)
		return err
	}
	_, err := attntest.NewSuiteOf(&p.Case).Check(&p.Case, forward)
	return err
}
