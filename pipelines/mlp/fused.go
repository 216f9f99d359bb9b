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

// newPair returns the kernel that o asks for, nil if it does not, or if it leaves the
// choice and two products are faster, or all that there is. An error says why a kernel that
// is forced cannot be.
func newPair(caps *vk.Caps, p Problem, o Options) (*pair, error) {
	x := &pair{
		p:   gemm.PairProblem{M: p.Tokens, In: p.In, Hidden: p.Hidden, N: p.Out, DType: p.DType, Out: p.yType()},
		opt: gemm.PairOptions{Config: o.FusedConfig},
	}
	forced := o.Fused == FusedOn || o.FusedConfig != nil
	if o.Fused == FusedOff || !forced && !gemm.PairPays(caps, x.p) {
		return nil, nil
	}
	err := x.choose(caps, p, o.Impl)
	if errors.Is(err, gemm.ErrUnsupported) && !forced {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("mlp: fused: %w", err)
	}
	return x, nil
}

// choose finds the configuration of the kernel.
func (x *pair) choose(caps *vk.Caps, p Problem, impl gemm.Impl) error {
	switch {
	case p.Heads > 0:
		return fmt.Errorf("the kernel has no heads: %w", gemm.ErrUnsupported)
	case p.Keep != KeepNothing:
		return fmt.Errorf("the kernel does not write pre: %w", gemm.ErrUnsupported)
	case impl != gemm.Auto && impl != gemm.CoopMat:
		return fmt.Errorf("path %v has no such kernel: %w", impl, gemm.ErrUnsupported)
	}
	config, err := gemm.ChoosePair(caps, x.p, x.opt)
	x.opt.Config = &config
	return err
}

// record records the kernel in its part of the workspace.
func (x *pair) record(c *vk.Cmd, memory *vk.Buffer, t Tensors) error {
	opt := x.opt
	opt.Workspace = memory
	return wrap(gemm.Pair(c, matrix(t.Y), t.X, matrix(t.W1), matrix(t.W2), x.p, opt))
}

// matrix returns the only matrix of a batch.
func matrix(t vk.Tensor) vk.Tensor {
	t.Shape, t.Strides = t.Shape[1:], t.Strides[1:]
	return t
}
