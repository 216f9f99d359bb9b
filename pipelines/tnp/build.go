package tnp

import (
	"fmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/record"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A builder makes the program of a plan. It needs the capabilities of a device, not the device:
// memory is known before it is allocated.
type builder struct {
	c     Config
	s     Shape
	pass  Pass
	dtype dtype.DType
	o     PlanOptions
	caps  *vk.Caps
	model *Model // nil until the program is recorded
	prog  *record.Program
	err   error // the first

	// These tensors live from the forward pass to the end.
	x, y, scale       *record.Tensor // inputs; scale is the gradient of the loss
	loss, logP, heads *record.Tensor // outputs
	outputs, headsPre *record.Tensor // of heads, if the backward pass reads them
	blocks            []*block
	last              *block // the heads read its normalized output
}

// An operand is a view of a tensor of the program, or of the model.
type operand struct {
	t    *record.Tensor // nil: of the model
	view func() vk.Tensor
}

func of(t *record.Tensor) operand { return operand{t, t.View} }

// weight returns a parameter; gradient returns where the gradient by it is written.
func (b *builder) weight(name string) operand {
	return operand{nil, func() vk.Tensor { return b.model.weight(name) }}
}
func (b *builder) gradient(name string) operand {
	return operand{nil, func() vk.Tensor { return b.model.gradient(name) }}
}

// then returns f of the view.
func (o operand) then(f func(t vk.Tensor) vk.Tensor) operand {
	return operand{o.t, func() vk.Tensor { return f(o.view()) }}
}

// slice returns the indices from first to end-1 of an axis.
func (o operand) slice(axis, first, end int) operand {
	return o.then(func(t vk.Tensor) vk.Tensor { return t.Slice(axis, first, end) })
}

// split returns an operand (rows, columns) as (n, rows/n, columns): a matrix for each task.
func (o operand) split(n int) operand {
	return o.then(func(t vk.Tensor) vk.Tensor {
		rows := t.Shape[0] / n
		t.Shape, t.Strides = []int{n, rows, t.Shape[1]}, []int{rows * t.Strides[0], t.Strides[0], t.Strides[1]}
		return t
	})
}

// repeated returns an operand (rows, columns) as n times the same matrix.
func (o operand) repeated(n int) operand {
	return o.then(func(t vk.Tensor) vk.Tensor {
		t.Shape, t.Strides = append([]int{n}, t.Shape...), append([]int{0}, t.Strides...)
		return t
	})
}

// heads returns an operand (tasks*rows, heads*dim) in the shape of attention, (tasks, heads,
// rows, dim).
func (o operand) heads(tasks, heads int) operand {
	return o.then(func(t vk.Tensor) vk.Tensor {
		rows, dim := t.Shape[0]/tasks, t.Shape[1]/heads
		t.Shape, t.Strides = []int{tasks, heads, rows, dim}, []int{rows * t.Strides[0], dim, t.Strides[0], 1}
		return t
	})
}

// tensor returns a tensor of the plan in the format of activations.
func (b *builder) tensor(name string, shape ...int) *record.Tensor {
	return b.prog.Tensor(name, b.dtype, shape...)
}

func (b *builder) float(name string, shape ...int) *record.Tensor {
	return b.prog.Tensor(name, dtype.Float32, shape...)
}

// fail keeps the first error of planning.
func (b *builder) fail(step string, err error) {
	if b.err == nil && err != nil {
		b.err = fmt.Errorf("tnp: %s: %w", step, err)
	}
}

// workspaceOf begins the names of workspaces.
const workspaceOf = "workspace of "

// scratch returns the workspace of a step. Bytes and err are what Workspace of a package
// returned.
func (b *builder) scratch(step string, bytes int64, err error) *record.Tensor {
	b.fail(step, err)
	return b.prog.Scratch(workspaceOf+step, bytes)
}

// step appends a step that reads and writes operands. Operands of the model are no tensors of the
// program.
func (b *builder) step(name string, reads, writes []operand, scratch *record.Tensor, f func(c *vk.Cmd) error) {
	tensors := func(list []operand) (t []*record.Tensor) {
		for _, o := range list {
			t = append(t, o.t)
		}
		return t
	}
	b.prog.Step(name, tensors(reads), append(tensors(writes), scratch), f)
}

// A normed is what LayerNorm leaves: the sum that it normalized, the result, and the statistics.
type normed struct {
	sum, y     *record.Tensor
	mean, rstd *record.Tensor
	rows       int
}

// norm returns the problem of a norm. WeightDType is float32, since norms read the master
// weights.
func (b *builder) norm(rows int, residual bool) norm.Problem {
	return norm.Problem{Rows: rows, Cols: b.c.DModel, Eps: NormEps, DType: b.dtype, WeightDType: dtype.Float32, Residual: residual}
}

// normalize appends y = norm(x + branch); without a branch, sum is x.
func (b *builder) normalize(name, weight string, x, branch operand, rows int) normed {
	residual := branch.view != nil
	n := normed{y: b.tensor(name+".y", rows, b.c.DModel), mean: b.float(name+".mean", rows), rstd: b.float(name+".rstd", rows), rows: rows}
	p, w := b.norm(rows, residual), b.weight(weight)
	reads, writes := []operand{x}, []operand{of(n.y), of(n.mean), of(n.rstd)}
	if residual {
		n.sum = b.tensor(name+".sum", rows, b.c.DModel)
		reads, writes = append(reads, branch), append(writes, of(n.sum))
	}
	bytes, err := norm.Workspace(b.caps, p, kit.Forward, norm.Options{})
	scratch := b.scratch(name, bytes, err)
	b.step(name, reads, writes, scratch, func(c *vk.Cmd) error {
		t := norm.Tensors{X: x.view(), W: w.view(), Y: n.y.View(), Mean: n.mean.View(), RStd: n.rstd.View()}
		if residual {
			t.X, t.Residual, t.Sum = branch.view(), x.view(), n.sum.View()
		}
		return norm.Forward(c, t, p, norm.Options{Workspace: scratch.Buffer()})
	})
	return n
}

// normalizeBackward appends dx, the gradient through the norm of sum, plus dsum.
func (b *builder) normalizeBackward(name, weight string, n normed, sum, dy, dsum, dx operand) {
	residual := dsum.view != nil
	p, w, dw := b.norm(n.rows, residual), b.weight(weight), b.gradient(weight)
	reads := []operand{sum, dy, of(n.mean), of(n.rstd)}
	if residual {
		reads = append(reads, dsum)
	}
	bytes, err := norm.Workspace(b.caps, p, kit.Backward, norm.Options{})
	scratch := b.scratch(name, bytes, err)
	b.step(name, reads, []operand{dx}, scratch, func(c *vk.Cmd) error {
		t := norm.Tensors{W: w.view(), Mean: n.mean.View(), RStd: n.rstd.View()}
		g := norm.Gradients{DY: dy.view(), DX: dx.view(), DW: dw.view()}
		if residual {
			t.Sum, g.DSum = sum.view(), dsum.view()
		} else {
			t.X = sum.view()
		}
		return norm.Backward(c, t, g, p, norm.Options{Workspace: scratch.Buffer()})
	})
}

// rows returns the rows of each task from first to end-1 of an operand of all tokens. It is a
// view where they follow one another. Else rows appends a copy.
func (b *builder) rows(name string, x operand, first, end int) operand {
	if b.s.Batch == 1 {
		return x.slice(0, first, end)
	}
	t := b.tensor(name, b.s.Batch*(end-first), b.c.DModel)
	b.copied(name, of(t).split(b.s.Batch), x.split(b.s.Batch).slice(1, first, end))
	return of(t)
}

// attended returns the problem of attention with that many queries of a task.
func (b *builder) attended(queries int) attention.Problem {
	return attention.Problem{Batch: b.s.Batch, NumHeads: b.c.Heads, NumKVHeads: b.c.Heads, SeqQ: queries, SeqKV: b.s.Context, HeadDim: b.c.HeadDim, DType: b.dtype}
}

// This file has the products that plans take of package gemm.

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
