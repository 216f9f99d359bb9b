package bench

import (
	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/vk"
)

// A Pass is what is computed of attention. The zero value is Forward.
type Pass uint8

const (
	Forward  Pass = iota
	Backward      // the gradients, from what a forward pass left
	Both          // one after the other
)

// kernel returns the name of the pass in results.
func (p Pass) kernel() string {
	switch p {
	case Backward:
		return "attention_bwd"
	case Both:
		return "attention_fwd_bwd"
	}
	return "attention_fwd"
}

// passOf returns the pass of a result.
func passOf(kernel string) Pass {
	for _, p := range []Pass{Backward, Both} {
		if kernel == p.kernel() {
			return p
		}
	}
	return Forward
}

// benchmarkNames gives each kernel its name in the Go benchmark format.
var benchmarkNames = map[string]string{
	"attention_fwd": "AttentionFwd", "attention_bwd": "AttentionBwd", "attention_fwd_bwd": "AttentionFwdBwd",
}

// String names the pass in words.
func (p Pass) String() string {
	switch p {
	case Backward:
		return "backward"
	case Both:
		return "forward and backward"
	}
	return "forward"
}

// flops returns the operations of the pass for p as it is measured.
func (p Pass) flops(problem attention.Problem) float64 {
	n := flops(problem)
	d, dv := float64(problem.HeadDim), float64(problem.ValueHeadDim())
	backward := n / (d + dv) * (3*d + 2*dv) // as problem.Problem.BackwardFLOPs
	switch p {
	case Backward:
		return backward
	case Both:
		return n + backward
	}
	return n
}

// bytes returns the least traffic of the pass.
func (p Pass) bytes(problem attention.Problem) float64 {
	switch p {
	case Backward:
		return problem.BackwardBytes()
	case Both:
		return problem.Bytes() + problem.BackwardBytes()
	}
	return problem.Bytes()
}

// choice returns what runs, or why nothing does.
func (p Pass) choice(caps *vk.Caps, problem attention.Problem, opt attention.Options) (string, error) {
	var forward, backward string
	if p != Backward {
		config, err := attention.Choose(caps, problem, opt)
		if err != nil {
			return "", err
		}
		forward = config.String()
	}
	if p != Forward {
		config, err := attention.ChooseBackward(caps, problem, opt)
		if err != nil {
			return "", err
		}
		backward = config.String()
	}
	if p == Both {
		return forward + "; " + backward, nil
	}
	return forward + backward, nil
}
