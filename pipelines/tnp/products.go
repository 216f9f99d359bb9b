package tnp

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// This file has what plans take of package gemm.

// product appends dst = a * w. P says more, but for the formats.
func (b *builder) product(name string, dst, a, w operand, out dtype.DType, p gemm.Problem) {
	p.DType, p.Out = b.dtype, dtype.Some(out)
	opt := gemm.Options{Impl: b.o.Products}
	bytes, err := gemm.Workspace(b.caps, p, kit.Forward, opt)
	scratch := b.scratch(name, bytes, err)
	reads := []operand{a, w}
	if p.Beta != 0 {
		reads = append(reads, dst)
	}
	b.step(name, reads, []operand{dst}, scratch, func(c *vk.Cmd) error {
		opt.Workspace = scratch.Buffer()
		return gemm.Forward(c, gemm.Tensors{A: a.view(), B: w.view(), C: dst.view()}, p, opt)
	})
}

// copied appends dst = src, (tasks, rows, columns).
func (b *builder) copied(name string, dst, src operand) {
	b.step(name, []operand{src}, []operand{dst}, nil, func(c *vk.Cmd) error { return engine.Pad(c, dst.view(), src.view()) })
}

// hiddenStride returns the distance of rows of hidden units, in elements.
func (c Config) hiddenStride() int { return engine.RowStride(c.ff()) }
