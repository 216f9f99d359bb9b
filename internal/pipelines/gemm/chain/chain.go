// Package chain lays out products of package gemm that follow one another, and the tensors
// between them, in one workspace.
//
//	var memory chain.Memory
//	between := memory.Take(bytes)                 a tensor between two products
//	first, err := chain.NewProduct(caps, "mlp", &memory, p, options)
//	…
//	b, err := argument.Open(c, "mlp", opt.Workspace, memory.Bytes, inputs, outputs)
//	s, err := first.Steps(c, b, tensors)          to be recorded before the steps of the next
package chain

import (
	"fmt"

	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Memory lays out a workspace. The zero value is an empty one.
type Memory struct {
	Bytes int64
	taken int64 // by Take and Keep; products share the rest, one after the other
}

// Take returns the offset of a part of n bytes, a multiple of 256.
func (m *Memory) Take(n int64) int64 {
	at := m.Bytes
	m.Bytes += (n + 255) &^ 255
	m.taken = m.Bytes
	return at
}

// Keep reserves the memory of the products so far, so that the products that follow may run side by
// side with them.
func (m *Memory) Keep() { m.taken = m.Bytes }

// A Product is one call of gemm.
type Product struct {
	kernel string
	p      engine.Problem
	opt    engine.Options
}

// NewProduct chooses how a product is computed and reserves its memory. The product shares its
// memory with the products before and after it, which do not run at the same time, unless a Keep or
// Take is between them. Opt has the path, the user's tuning, and which operands are aligned, as
// operands in a workspace are. Errors begin with the name of the kernel that has the product.
func NewProduct(caps *vk.Caps, kernel string, m *Memory, p engine.Problem, opt engine.Options) (Product, error) {
	config, err := engine.Choose(caps, p, opt)
	if err != nil {
		return Product{}, Wrap(kernel, err)
	}
	if opt.PadB && !config.PackB {
		return Product{}, engine.Unsupported("%s: %v of %v takes no part of op(B) for the whole", kernel, config, p)
	}
	opt.Config = &config
	bytes, err := engine.Workspace(caps, p, opt)
	if err != nil {
		return Product{}, Wrap(kernel, err)
	}
	opt.WorkspaceOffset = m.taken
	m.Bytes = max(m.Bytes, m.taken+(bytes+255)&^255)
	return Product{kernel, p, opt}, nil
}

// Config returns the configuration of the product.
func (x *Product) Config() engine.Config { return *x.opt.Config }

// Kernels lists the modules that run, in order, but for copies of operands.
func (x *Product) Kernels() []string { return x.opt.Config.Kernels(x.p) }

// Steps returns the steps of the product in its part of the workspace. Products that run side by
// side are separated by a Keep. C is also the residual.
func (x *Product) Steps(c *vk.Cmd, workspace *vk.Buffer, t engine.Tensors) (engine.Steps, error) {
	opt := x.opt
	opt.Workspace = workspace
	if x.p.Residual {
		t.Residual = t.C
	}
	s, err := engine.MultiplySteps(c, t, x.p, opt)
	for _, list := range []steps.List{s.Copies, s.Product} {
		for i, step := range list {
			list[i] = func(c *vk.Cmd) error { return Wrap(x.kernel, step(c)) }
		}
	}
	return s, Wrap(x.kernel, err)
}

// Wrap puts the name of a kernel before an error of a part of it.
func Wrap(kernel string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", kernel, err)
	}
	return nil
}

// A Part is a call that Options.Tuning may have rows for, under the name Kernel and for Problem:
// a product (gemm), or a kernel that keeps hidden units on the chip (grouped, mixture).
type Part struct {
	Kernel  string
	Pass    kit.Pass
	Problem engine.Problem
}

// Part returns the product as a part.
func (x *Product) Part() Part { return Part{"gemm", kit.Forward, x.p} }
