package mlp

import (
	"errors"

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
	FusedAuto Fused = iota // one kernel where it was measured to be faster
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

// A oneKernel is both products in one kernel of package fused.
type oneKernel struct {
	p   fused.Problem
	opt fused.Options
}

// newOneKernel returns the kernel if o asks for it, or leaves the choice and it is faster than
// two products. Else it returns nil. An error says why a kernel that is forced cannot run.
func newOneKernel(caps *vk.Caps, p Problem, o Options) (*oneKernel, error) {
	config, err := o.fusedConfig()
	if err != nil {
		return nil, err
	}
	x := &oneKernel{
		p:   fused.Problem{M: p.Tokens, In: p.In, Hidden: p.Hidden, N: p.Out, DType: p.DType, Out: p.yType()},
		opt: fused.Options{Config: config},
	}
	forced := o.Fused == FusedOn || config != nil
	if o.Fused == FusedOff || !forced && !fused.Pays(caps, x.p) {
		return nil, nil
	}
	err = x.choose(caps, p, o.Impl)
	if errors.Is(err, vk.ErrUnsupported) && !forced {
		return nil, nil
	}
	if err != nil {
		return nil, wrap(err)
	}
	return x, nil
}

// choose finds the configuration of the kernel.
func (x *oneKernel) choose(caps *vk.Caps, p Problem, impl engine.Impl) error {
	switch {
	case p.Heads > 0:
		return argument.Unsupported("fused", "the kernel has no heads")
	case p.Keep != KeepNothing:
		return argument.Unsupported("fused", "the kernel does not write pre")
	case impl != engine.Auto && impl != engine.CoopMat:
		return argument.Unsupported("fused", "path %v has no such kernel", impl)
	}
	config, err := fused.Choose(caps, x.p, x.opt)
	x.opt.Config = &config
	return err
}

// record records the kernel in its part of the workspace.
func (x *oneKernel) record(c *vk.Cmd, memory *vk.Buffer, t Tensors) error {
	opt := x.opt
	opt.Workspace = memory
	return wrap(fused.Forward(c, fused.Tensors{X: t.X, W1: matrix(t.W1), W2: matrix(t.W2), Y: matrix(t.Y)}, x.p, opt))
}

// matrix returns the only matrix of a batch.
func matrix(t vk.Tensor) vk.Tensor {
	t.Shape, t.Strides = t.Shape[1:], t.Strides[1:]
	return t
}
