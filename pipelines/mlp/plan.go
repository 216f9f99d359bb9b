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

// A product is one call of gemm, and where its partial sums lie in the workspace.
type product struct {
	p       gemm.Problem
	config  gemm.Config
	partial int64
}

// newProduct chooses how a product is computed and takes memory for it.
func newProduct(caps *vk.Caps, l *layout, p gemm.Problem, impl gemm.Impl) (product, error) {
	config, err := gemm.Choose(caps, p, gemm.Options{Impl: impl})
	if err != nil {
		return product{}, fmt.Errorf("mlp: %w", err)
	}
	bytes, err := gemm.Workspace(caps, p, gemm.Options{Config: &config})
	if err != nil {
		return product{}, fmt.Errorf("mlp: %w", err)
	}
	return product{p, config, l.take(bytes)}, nil
}

// record records the product.
func (x *product) record(c *vk.Cmd, memory *vk.Buffer, dst, a, b vk.Tensor, opt gemm.Options) error {
	opt.Config, opt.Workspace, opt.WorkspaceOffset = &x.config, memory, x.partial
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
	if plan.first, err = newProduct(caps, &plan.memory, first, impl); err != nil {
		return plan, err
	}
	plan.second, err = newProduct(caps, &plan.memory, gemm.Problem{M: p.Tokens, N: p.Out, K: p.Hidden, DType: p.DType, Out: p.DType}, impl)
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
		to *product
		on bool
		p  gemm.Problem
	}{
		{&plan.pre, !kept, gemm.Problem{M: p.Tokens, N: p.Hidden, K: p.In, DType: p.DType, Out: p.DType}},
		{&plan.gradient, true, gemm.Problem{M: p.Tokens, N: p.Hidden, K: p.Out, TransB: true, Activation: gemm.TimesDSiLUKeep, DType: p.DType, Out: p.DType}},
		{&plan.dw2, true, gemm.Problem{M: p.Hidden, N: p.Out, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}},
		{&plan.dw1, true, gemm.Problem{M: p.In, N: p.Hidden, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}},
		{&plan.dx, true, gemm.Problem{M: p.Tokens, N: p.In, K: p.Hidden, TransB: true, DType: p.DType, Out: p.DType}},
	} {
		if !x.on {
			continue
		}
		if *x.to, err = newProduct(caps, &plan.memory, x.p, impl); err != nil {
			return plan, err
		}
	}
	return plan, nil
}
