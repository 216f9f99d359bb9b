package mlp

import (
	"errors"
	"fmt"

	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
)

// Fused says whether Forward is one kernel, engine.Pair, or two products.
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

// fusedConfig returns the configuration that is forced, nil if none is.
func (o Options) fusedConfig() (*engine.PairConfig, error) {
	if o.FusedConfig == "" {
		return nil, nil
	}
	c, err := engine.ParsePairConfig(o.FusedConfig)
	if err != nil {
		return nil, fmt.Errorf("mlp: fused_config: %w", err)
	}
	return &c, nil
}

// A pair is both products as one kernel.
type pair struct {
	p   engine.PairProblem
	opt engine.PairOptions
}

// newPair returns the kernel that o asks for, nil if it does not, or if it leaves the
// choice and two products are faster, or all that there is. An error says why a kernel that
// is forced cannot be.
func newPair(caps *vk.Caps, p Problem, o Options) (*pair, error) {
	config, err := o.fusedConfig()
	if err != nil {
		return nil, err
	}
	x := &pair{
		p:   engine.PairProblem{M: p.Tokens, In: p.In, Hidden: p.Hidden, N: p.Out, DType: p.DType, Out: p.yType()},
		opt: engine.PairOptions{Config: config},
	}
	forced := o.Fused == FusedOn || config != nil
	if o.Fused == FusedOff || !forced && !engine.PairPays(caps, x.p) {
		return nil, nil
	}
	err = x.choose(caps, p, o.Impl)
	if errors.Is(err, vk.ErrUnsupported) && !forced {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("mlp: fused: %w", err)
	}
	return x, nil
}

// choose finds the configuration of the kernel.
func (x *pair) choose(caps *vk.Caps, p Problem, impl engine.Impl) error {
	switch {
	case p.Heads > 0:
		return fmt.Errorf("the kernel has no heads: %w", vk.ErrUnsupported)
	case p.Keep != KeepNothing:
		return fmt.Errorf("the kernel does not write pre: %w", vk.ErrUnsupported)
	case impl != engine.Auto && impl != engine.CoopMat:
		return fmt.Errorf("path %v has no such kernel: %w", impl, vk.ErrUnsupported)
	}
	config, err := engine.ChoosePair(caps, x.p, x.opt)
	x.opt.Config = &config
	return err
}

// record records the kernel in its part of the workspace.
func (x *pair) record(c *vk.Cmd, memory *vk.Buffer, t Tensors) error {
	opt := x.opt
	opt.Workspace = memory
	return wrap(engine.Pair(c, matrix(t.Y), t.X, matrix(t.W1), matrix(t.W2), x.p, opt))
}

// matrix returns the only matrix of a batch.
func matrix(t vk.Tensor) vk.Tensor {
	t.Shape, t.Strides = t.Shape[1:], t.Strides[1:]
	return t
}
