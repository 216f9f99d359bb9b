package mlp

import (
	"fmt"

	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
)

// A layout hands out parts of a workspace.
type layout struct{ bytes int64 }

// take returns where a part of n bytes begins.
func (l *layout) take(n int64) int64 {
	at := l.bytes
	l.bytes += (n + 255) &^ 255
	return at
}

// of returns the workspace: the caller's, or memory of the Cmd.
func (l layout) of(c *vk.Cmd, given *vk.Buffer) (*vk.Buffer, error) {
	if given == nil {
		b := c.Scratch("mlp", l.bytes)
		return b, c.Err()
	}
	if given.Bytes() < l.bytes {
		return nil, fmt.Errorf("mlp: workspace has %d bytes, want %d", given.Bytes(), l.bytes)
	}
	return given, nil
}

// A product is one call of gemm, and where its part of the workspace begins.
type product struct {
	p   gemm.Problem
	opt gemm.Options
}

// newProduct chooses how a product is computed and takes memory for it. Opt says which
// operands are in our memory, and so aligned.
func newProduct(caps *vk.Caps, l *layout, p gemm.Problem, impl gemm.Impl, opt gemm.Options) (product, error) {
	config, err := gemm.Choose(caps, p, gemm.Options{Impl: impl})
	if err != nil {
		return product{}, fmt.Errorf("mlp: %w", err)
	}
	opt.Config = &config
	bytes, err := gemm.Workspace(caps, p, opt)
	if err != nil {
		return product{}, fmt.Errorf("mlp: %w", err)
	}
	opt.WorkspaceOffset = l.take(bytes)
	return product{p, opt}, nil
}

// record records the product; pre and silu are the tensors of its activation.
func (x *product) record(c *vk.Cmd, memory *vk.Buffer, dst, a, b, pre, silu vk.Tensor) error {
	opt := x.opt
	opt.Workspace, opt.X, opt.S = memory, pre, silu
	if err := gemm.Multiply(c, dst, a, b, x.p, opt); err != nil {
		return fmt.Errorf("mlp: %w", err)
	}
	return nil
}

// A forwardPlan is what Forward runs.
type forwardPlan struct {
	memory        layout
	hidden        int64 // where silu(pre) lies
	first, second product
}

func newForwardPlan(caps *vk.Caps, p Problem, impl gemm.Impl, keep bool) (plan forwardPlan, err error) {
	if err := p.Validate(); err != nil {
		return plan, err
	}
	plan.hidden = plan.memory.take(hiddenBytes(p))
	first := gemm.Problem{M: p.Tokens, N: p.Hidden, K: p.In, Activation: gemm.SiLU, DType: p.DType, Out: p.DType}
	if keep {
		first.Activation = gemm.SiLUKeep
	}
	if plan.first, err = newProduct(caps, &plan.memory, first, impl, gemm.Options{}); err != nil {
		return plan, err
	}
	plan.second, err = newProduct(caps, &plan.memory, gemm.Problem{M: p.Tokens, N: p.Out, K: p.Hidden, DType: p.DType, Out: p.DType}, impl, gemm.Options{AlignedA: true})
	return plan, err
}

// A backwardPlan is what Backward runs.
type backwardPlan struct {
	memory                      layout
	hidden, dpre                int64 // where silu(pre), before it pre, and dpre lie
	pre, gradient, dw2, dw1, dx product
}

func newBackwardPlan(caps *vk.Caps, p Problem, impl gemm.Impl, kept bool) (plan backwardPlan, err error) {
	if err := p.Validate(); err != nil {
		return plan, err
	}
	plan.hidden = plan.memory.take(hiddenBytes(p))
	plan.dpre = plan.memory.take(hiddenBytes(p))
	for _, x := range []struct {
		to   *product
		on   bool
		p    gemm.Problem
		a, b bool // the operands that are in our memory
	}{
		{&plan.pre, !kept, gemm.Problem{M: p.Tokens, N: p.Hidden, K: p.In, DType: p.DType, Out: p.DType}, false, false},
		{&plan.gradient, true, gemm.Problem{M: p.Tokens, N: p.Hidden, K: p.Out, TransB: true, Activation: gemm.TimesDSiLUKeep, DType: p.DType, Out: p.DType}, false, false},
		{&plan.dw2, true, gemm.Problem{M: p.Hidden, N: p.Out, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}, true, false},
		{&plan.dw1, true, gemm.Problem{M: p.In, N: p.Hidden, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}, false, true},
		{&plan.dx, true, gemm.Problem{M: p.Tokens, N: p.In, K: p.Hidden, TransB: true, DType: p.DType, Out: p.DType}, true, false},
	} {
		if !x.on {
			continue
		}
		if *x.to, err = newProduct(caps, &plan.memory, x.p, impl, gemm.Options{AlignedA: x.a, AlignedB: x.b}); err != nil {
			return plan, err
		}
	}
	return plan, nil
}
