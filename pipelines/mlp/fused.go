package mlp

import (
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/fused"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// Fused says whether Forward is one kernel or two products.
type Fused uint8

// The choices.
const (
	FusedAuto Fused = iota // two products: one kernel was slower on every device
	FusedOn                // one kernel, or an error that says why not
	FusedOff               // two products
)

var fusedNames = enum.Names[Fused]{FusedAuto: "auto", FusedOn: "on", FusedOff: "off"}

// String returns auto, on or off.
func (f Fused) String() string { return fusedNames.Of(f) }

// fusedConfig returns the configuration that is forced, or nil.
func (o Options) fusedConfig() (*fused.Config, error) {
	if o.FusedConfig == "" {
		return nil, nil
	}
	c, err := fused.ParseConfig(o.FusedConfig)
	if err != nil {
		return nil, wrap(err)
	}
	return &c, nil
}

// newOneKernel returns both products in one kernel if o asks for it, and else nil. An error says why
// the kernel cannot run.
func newOneKernel(caps *vk.Caps, p Problem, o Options) (*fused.Plan, error) {
	config, err := o.fusedConfig()
	switch {
	case err != nil:
		return nil, err
	case o.Fused == FusedOff || o.Fused == FusedAuto && config == nil:
		return nil, nil
	case p.Heads > 0:
		return nil, wrap(argument.Unsupported("fused", "the kernel has no heads"))
	case p.Keep != KeepNothing:
		return nil, wrap(argument.Unsupported("fused", "the kernel does not write pre"))
	case o.Impl != engine.Auto && o.Impl != engine.CoopMat:
		return nil, wrap(argument.Unsupported("fused", "path %v has no such kernel", o.Impl))
	}
	problem := fused.Problem{M: p.Tokens, In: p.In, Hidden: p.Hidden, N: p.Out, DType: p.DType, Out: p.yType()}
	plan, err := fused.Choose(caps, problem, config)
	return &plan, wrap(err)
}

// matrix returns the only matrix of a batch.
func matrix(t vk.Tensor) vk.Tensor {
	t.Shape, t.Strides = t.Shape[1:], t.Strides[1:]
	return t
}
