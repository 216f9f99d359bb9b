package mlp

import (
	"errors"
	"fmt"

	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
)

// Fused says whether Forward is one kernel, gemm.Pair, or two products.
type Fused uint8

// What there is to choose from.
const (
	FusedAuto Fused = iota // one kernel where it was measured to be faster
	FusedOn                // one kernel, or an error that says why not
	FusedOff               // two products
)

// String returns auto, on or off.
func (f Fused) String() string {
	switch f {
	case FusedAuto:
		return "auto"
	case FusedOn:
		return "on"
	case FusedOff:
		return "off"
	}
	return fmt.Sprintf("Fused(%d)", uint8(f))
}

// A pair is both products as one kernel.
type pair struct {
	p   gemm.PairProblem
	opt gemm.PairOptions
}

// newPair returns the kernel that opt asks for, nil if it does not, or if it leaves the
// choice and two products are faster, or all that there is. An error says why a kernel that
// is forced cannot be.
func newPair(caps *vk.Caps, p Problem, opt *Options, keep Keep) (*pair, error) {
	x := &pair{
		p:   gemm.PairProblem{M: p.Tokens, In: p.In, Hidden: p.Hidden, N: p.Out, DType: p.DType, Out: p.DType},
		opt: gemm.PairOptions{Config: opt.FusedConfig},
	}
	forced := opt.Fused == FusedOn || opt.FusedConfig != nil
	switch {
	case opt.Fused > FusedOff:
		return nil, fmt.Errorf("mlp: fused=%v is not one of auto, on, off", opt.Fused)
	case opt.Fused == FusedOff || !forced && !gemm.PairPays(caps, x.p):
		return nil, nil
	}
	err := x.choose(caps, opt.Impl, keep)
	if errors.Is(err, gemm.ErrUnsupported) && !forced {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("mlp: fused: %w", err)
	}
	return x, nil
}

// choose finds the configuration of the kernel.
func (x *pair) choose(caps *vk.Caps, impl gemm.Impl, keep Keep) error {
	switch {
	case keep != KeepNothing:
		return fmt.Errorf("the kernel does not write pre: %w", gemm.ErrUnsupported)
	case impl != gemm.Auto && impl != gemm.CoopMat:
		return fmt.Errorf("path %v has no such kernel: %w", impl, gemm.ErrUnsupported)
	}
	config, err := gemm.ChoosePair(caps, x.p, x.opt)
	x.opt.Config = &config
	return err
}

// record records the kernel in its part of the workspace.
func (x *pair) record(c *vk.Cmd, memory *vk.Buffer, y, a, w1, w2 vk.Tensor) error {
	opt := x.opt
	opt.Workspace = memory
	if err := gemm.Pair(c, y, a, w1, w2, x.p, opt); err != nil {
		return fmt.Errorf("mlp: %w", err)
	}
	return nil
}
