package tnp

import (
	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func (b *builder) backward() {
	c, s := b.c, b.s
	b.scale = b.prog.Input("loss scale", dtype.Float32, 1)
	dz := b.tensor("gradient of norm.y", s.Batch*s.Targets, c.DModel)
	b.lossBackward(dz)
	top := b.blocks[c.Layers-1]
	dx := of(b.tensor("gradient of norm.sum", top.rows, c.DModel))
	b.normalizeBackward("norm, backward", "norm.weight", b.last.n1, of(b.last.n1.sum), of(dz), operand{}, dx)
	for i := c.Layers - 1; i >= 0; i-- {
		dx = b.blockBackward(b.blocks[i], dx)
	}
	b.weightGradient("embed, backward", b.gradient("embed.weight"), of(b.x), dx, c.input(), c.DModel, s.Tokens())
}

// weightGradient appends dw = xᵀ * dy, (in, out), summed over that many rows.
func (b *builder) weightGradient(name string, dw, x, dy operand, in, out, rows int) {
	b.product(name, dw, x, dy, dtype.Float32, gemm.Problem{M: in, N: out, K: rows, TransA: true})
}

func (b *builder) lossBackward(dz *record.Tensor) {
	if b.keepsHeads() {
		b.headsBackward(dz)
		return
	}
	p, opt := b.mixture(), b.o.mixture()
	bytes, err := mixture.Workspace(b.caps, p, kit.Backward, opt)
	scratch := b.scratch("loss, backward", bytes, err)
	b.step("loss, backward", []operand{of(b.last.n1.y), of(b.y), of(b.scale)}, []operand{of(dz)}, scratch, func(c *vk.Cmd) error {
		opt.Workspace = scratch.Buffer()
		g := mixture.Gradients{DLoss: b.scale.View(), DX: dz.View(), DW1: b.model.gradient("heads.up"), DW2: b.model.gradient("heads.down")}
		return mixture.Backward(c, b.mixtureTensors(), g, p, opt)
	})
}

// headsBackward appends the gradients by the outputs of heads, which are kept, and the gradients
// through the heads.
func (b *builder) headsBackward(dz *record.Tensor) {
	p := b.mixture()
	heads, opt := b.perceptrons(p), mlp.Options{Impl: b.o.Products}
	dy := b.tensor("gradient of heads", heads.YShape()...)
	b.step("loss, backward", []operand{of(b.outputs), of(b.y), of(b.scale)}, []operand{of(dy)}, nil, func(c *vk.Cmd) error {
		g := gmm.Gradients{DLoss: b.scale.View()}
		g.DLogit, g.DMu, g.DLogSigma = gmm.Interleaved(dy.View())
		return gmm.Backward(c, b.mixtures(), g, p.Mixtures(), gmm.Options{Saturate: true})
	})
	bytes, err := mlp.Workspace(b.caps, heads, kit.Backward, opt)
	scratch := b.scratch("heads, backward", bytes, err)
	b.step("heads, backward", []operand{of(b.last.n1.y), of(b.headsPre), of(dy)}, []operand{of(dz)}, scratch, func(c *vk.Cmd) error {
		opt.Workspace = scratch.Buffer()
		g := mlp.Gradients{DY: dy.View(), DX: dz.View(), DW1: b.model.gradient("heads.up"), DW2: b.model.gradient("heads.down")}
		return mlp.Backward(c, b.headsTensors(), g, heads, opt)
	})
}

// blockBackward appends the backward pass of a block. Dx is the gradient by the stream after it,
// of the block's rows. The result is the gradient by the stream before the block, of all tokens.
func (b *builder) blockBackward(k *block, dx operand) operand {
	c, inner := b.c, b.c.inner()
	k = b.blockAgain(k)
	dy2 := b.tensor(k.name("gradient of norm2.y"), k.rows, c.DModel)
	b.perceptronBackward(k, dx, dy2)
	dx1, all := b.streamGradient(k)
	b.normalizeBackward(k.name("norm2, backward"), k.name("norm2.weight"), k.n2, of(k.n2.sum), of(dy2), dx, dx1)
	do := b.tensor(k.name("gradient of o"), k.rows, inner)
	b.product(k.name("project out, backward"), of(do), dx1, b.weight(k.name("out.weight")), b.dtype, gemm.Problem{M: k.rows, N: inner, K: c.DModel, TransB: true})
	b.weightGradient(k.name("gradient of out.weight"), b.gradient(k.name("out.weight")), of(k.o), dx1, inner, c.DModel, k.rows)
	dq, dkv := b.attendBackward(k, do)
	dy1 := b.projectBackward(k, dq, dkv)
	all = b.scatter(k, dx1, all)
	before := of(b.tensor(k.name("gradient of x"), b.s.Tokens(), c.DModel))
	b.normalizeBackward(k.name("norm1, backward"), k.name("norm1.weight"), k.n1, k.x, of(dy1), all, before)
	return before
}

func (b *builder) perceptronBackward(k *block, dx operand, dy2 *record.Tensor) {
	p, opt, name := b.mlp(k), b.o.mlp(), k.name("perceptron, backward")
	bytes, err := mlp.Workspace(b.caps, p, kit.Backward, opt)
	scratch := b.scratch(name, bytes, err)
	reads := []operand{dx, of(k.n2.y)}
	if k.pre != nil {
		reads = append(reads, of(k.pre), of(k.hidden))
	}
	b.step(name, reads, []operand{of(dy2)}, scratch, func(c *vk.Cmd) error {
		opt.Workspace = scratch.Buffer()
		g := mlp.Gradients{DY: dx.view(), DX: dy2.View(), DW1: b.model.gradient(k.name("up.weight")), DW2: b.model.gradient(k.name("down.weight"))}
		return mlp.Backward(c, b.mlpTensors(k), g, p, opt)
	})
}

// streamGradient returns two views for the gradient by the stream inside a block: rows is
// written, and all has all tokens. They differ in the last block only, whose rows are targets.
// With one task rows is a part of all.
func (b *builder) streamGradient(k *block) (rows, all operand) {
	name, s := k.name("gradient of norm2.sum"), b.s
	if !k.last {
		t := of(b.tensor(name, k.rows, b.c.DModel))
		return t, t
	}
	all = of(b.tensor(name+", all tokens", s.Tokens(), b.c.DModel))
	b.zero(k.name("zeros of context"), all)
	if s.Batch == 1 {
		return all.slice(0, s.Context, s.Context+s.Targets), all
	}
	return of(b.tensor(name, k.rows, b.c.DModel)), all
}

// zero appends x = 0.
func (b *builder) zero(name string, x operand) {
	b.step(name, nil, []operand{x}, nil, func(c *vk.Cmd) error {
		buffer := x.view().Buffer
		c.Fill(buffer, 0, buffer.Bytes()&^3, 0)
		return c.Err()
	})
}

// scatter appends the copy of rows of the last block to the rows of all tokens, unless they lie
// there.
func (b *builder) scatter(k *block, rows, all operand) operand {
	if s := b.s; k.last && s.Batch > 1 {
		b.copied(k.name("gradient of targets"), all.split(s.Batch).slice(1, s.Context, s.Context+s.Targets), rows.split(s.Batch))
	}
	return all
}

// attendBackward appends the backward pass of attention. Dkv is (rows, 2*heads*dim), of k and v.
func (b *builder) attendBackward(k *block, do *record.Tensor) (dq, dkv *record.Tensor) {
	s, inner, heads := b.s, b.c.inner(), b.c.Heads
	dq, dkv = b.tensor(k.name("gradient of q"), k.rows, inner), b.tensor(k.name("gradient of kv"), s.Batch*s.Context, 2*inner)
	p, opt, name := b.attended(k.queries), b.o.attention(), k.name("attention, backward")
	bytes, err := attention.Workspace(b.caps, p, kit.Backward, opt)
	scratch := b.scratch(name, bytes, err)
	b.step(name, []operand{of(k.q), of(k.kv), of(k.o), of(k.lse), of(do)}, []operand{of(dq), of(dkv)}, scratch, func(c *vk.Cmd) error {
		opt.Workspace = scratch.Buffer()
		return attention.Backward(c, b.attention(k), attention.Gradients{
			DO: of(do).heads(s.Batch, heads).view(), DQ: of(dq).heads(s.Batch, heads).view(),
			DK: of(dkv).slice(1, 0, inner).heads(s.Batch, heads).view(), DV: of(dkv).slice(1, inner, 2*inner).heads(s.Batch, heads).view(),
		}, p, opt)
	})
	return dq, dkv
}

// projectBackward appends the gradients by the weights of q, k and v. It returns the gradient by
// their input, a sum of two products: of dq for all rows of the block, and of dkv for the context.
func (b *builder) projectBackward(k *block, dq, dkv *record.Tensor) *record.Tensor {
	c, s, inner := b.c, b.s, b.c.inner()
	weight, gradient := b.weight(k.name("qkv.weight")), b.gradient(k.name("qkv.weight"))
	b.weightGradient(k.name("gradient of q.weight"), gradient.slice(1, 0, inner), k.yq, of(dq), c.DModel, inner, k.rows)
	b.weightGradient(k.name("gradient of kv.weight"), gradient.slice(1, inner, 3*inner), k.yc, of(dkv), c.DModel, 2*inner, s.Batch*s.Context)

	dy := b.tensor(k.name("gradient of norm1.y"), s.Tokens(), c.DModel)
	part := func(name string, d operand, first, rows, column, columns int, beta float64) {
		w := weight.slice(1, column, column+columns)
		p := gemm.Problem{M: k.rows, N: c.DModel, K: columns, TransB: true, Beta: beta}
		to := of(dy)
		if rows < s.Context+s.Targets { // else one product of all tasks has fewer edges
			p.Batch, p.M = s.Batch, rows
			to, d, w = to.split(s.Batch).slice(1, first, first+rows), d.split(s.Batch), w.repeated(s.Batch)
		}
		b.product(k.name(name), to, d, w, b.dtype, p)
	}
	first, before := 0, 1.0
	if k.last {
		first, before = s.Context, 0
	}
	part("project q, backward", of(dq), first, k.queries, 0, inner, 0)
	part("project kv, backward", of(dkv), 0, s.Context, inner, 2*inner, before)
	return dy
}
