// Package grouped computes two-layer perceptrons that share their input, the heads of a
// model, and their gradients on a Vulkan device.
//
//	pre[k]  = x * W1[k]
//	y[:, k] = silu(pre[k]) * W2[k]                  silu(v) = v / (1 + exp(-v))
//
//	dpre[k] = (dy[:, k] * W2[k]ᵀ) ∘ silu'(pre[k])
//	dx      = sum over k of dpre[k] * W1[k]ᵀ
//	dW1[k]  = xᵀ * dpre[k]     dW2[k] = silu(pre[k])ᵀ * dy[:, k]
//
// Heads are products of a batch of package gemm. On matrices, with at most 8 outputs of a
// head, the forward pass is one kernel and a sum, gemm.Narrow, and no hidden unit reaches
// memory unless the caller keeps it; in the backward pass dpre alone does, as
// gemm.NarrowBackward makes it and dW2 in one kernel and a sum. Else silu(pre) and pre are
// written to the workspace.
//
// Options.Pre keeps pre from Forward for Backward, which then need not compute it once more:
// memory for time. On matrices, with at most 8 outputs, one kernel makes dpre and dW2 of it,
// gemm.NarrowDSiLU.
//
// What is in memory between products is that of as many heads at a time as have 256 MiB of
// silu(pre) or of sums of y, or 512 MiB of dpre alone, or of Options.Heads, and the next
// heads take their place: memory is bounded, whatever the number of heads.
//
//	pass      products for each head                         workspace for the heads at a time
//	Forward   1, with silu and W2 after it                   sums of y by columns of W1, float32
//	          2, the first with silu                         silu(pre)
//	Backward  3, one of them pre once more, 2 if it is kept  dpre, a copy of W1, sums of dW2 by tokens, float32
//	          5, likewise, 4 if it is kept                   silu(pre), pre and later dpre, a copy of W1
//
//	what is kept  elements of DType, that the caller has
//	nothing       0
//	Options.Pre   tokens * heads * hidden: 437 MB of 16000 tokens, 10 heads of 1365, in 16 bits
//
// In the backward pass, a row of hidden units of all heads at a time is one row of memory,
// each head's padded to 16 bytes with zeros, and rows are gemm.RowStride elements apart. That
// makes the sum over heads in dx the k of one product,
//
//	dx = [dpre[0] 0 dpre[1] 0 …] * [W1[0] 0 W1[1] 0 …]ᵀ
//
// whose sum is float32; dx is rounded to its format once for each time. What is in memory
// between products is rounded to DType. A pre that it cannot hold, beyond 65504 in float16,
// is an infinity there, of which the backward pass makes NaN.
//
// Package mixture is this and gmm behind it, in one kernel forward.
//
// All is deterministic: the same call on the same device gives the same bits.
// Functions are safe for concurrent use, as far as what they are given is: a vk.Cmd
// belongs to one goroutine.
package grouped

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/pipelines/grouped/problem"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/argument"
	"github.com/flashvk/flashvk/vk/steps"
)

// A Problem holds the sizes and formats of one call.
type Problem = problem.Problem

// Options modify a call. The zero value is the default.
type Options struct {
	// Impl forces a path of the products.
	Impl gemm.Impl
	// Heads is how many heads are computed at a time, at most; 0 leaves it to the package.
	Heads int
	// Products makes Forward and Backward write hidden units to memory where they could do
	// without.
	Products bool
	// Float32 makes y of Forward float32 whatever p.DType is.
	Float32 bool
	// Pre is pre, (tokens, heads, hidden), which Forward writes, or Backward reads; the zero
	// Tensor leaves it out, and Backward computes it. Rows, those of hidden units of a head, are
	// best gemm.RowStride elements apart.
	Pre vk.Tensor
	// Workspace is memory for what is between the products, ForwardWorkspace or
	// BackwardWorkspace bytes of it, that nothing else uses until the commands have
	// completed: a second call in the same Cmd comes after a Barrier. Nil takes memory of
	// the Cmd.
	Workspace *vk.Buffer
}

// Keep says what Forward leaves to Backward.
type Keep = chain.Keep

// What there is to choose from.
const (
	KeepNothing = chain.KeepNothing
	KeepPre     = chain.KeepPre // Options.Pre
)

// Keeps lists them.
func Keeps() []Keep { return []Keep{KeepNothing, KeepPre} }

// keeps returns what the tensors of o keep.
func (o Options) keeps() Keep {
	if o.Pre.IsZero() {
		return KeepNothing
	}
	return KeepPre
}

// Validate returns an error that names the first value that breaks a rule.
func (o Options) Validate() error {
	if o.Heads < 0 {
		return fmt.Errorf("grouped: heads_at_a_time=%d is negative", o.Heads)
	}
	return nil
}

// yType returns the format of what Forward writes.
func (o Options) yType(p Problem) dtype.DType {
	if o.Float32 {
		return dtype.Float32
	}
	return p.DType
}

// none stands for a tensor that a product does not have.
var none vk.Tensor

// Forward computes
//
//	y[:, k] = silu(x * w1[k]) * w2[k]
//
// and with opt.Pre
//
//	pre[:, k] = x * w1[k]
//
// X is (tokens, in), w1 (heads, in, hidden), w2 (heads, hidden, out), y (tokens, heads, out)
// and opt.Pre (tokens, heads, hidden), all of p.DType, y with opt.Float32 in float32, with any
// strides and a contiguous last axis. Strides and offsets that are multiples of 8 elements are
// fastest. Y and opt.Pre have memory of their own.
//
// Forward records into c and returns; y and opt.Pre are valid once c has completed. The inputs
// must be written and visible by then: after another kernel of the same Cmd, a c.Barrier() comes
// before Forward, and one after it before y is read.
//
// It returns an error that wraps ErrUnsupported if no path on the device handles p, and
// an error naming the argument if a tensor does not fit p.
func Forward(c *vk.Cmd, y, x, w1, w2 vk.Tensor, p Problem, opt Options) error {
	keep := opt.keeps()
	plan, err := newForwardPlan(c.Device().Caps(), p, opt, keep)
	if err != nil {
		return err
	}
	err = argument.Check("grouped", []argument.Argument{
		argument.New("x", x, true, p.DType, p.XShape()),
		argument.New("w1", w1, true, p.DType, p.W1Shape()),
		argument.New("w2", w2, true, p.DType, p.W2Shape()),
	}, []argument.Argument{
		argument.New("y", y, true, opt.yType(p), p.YShape()),
		argument.New("pre", opt.Pre, keep == KeepPre, p.DType, p.PreShape()),
	})
	if err != nil {
		return err
	}
	memory, err := plan.memory.Buffer(c, "grouped", opt.Workspace)
	if err != nil {
		return err
	}
	return plan.record(c, memory, y, x, w1, w2, p, opt)
}

// record records the parts one after the other.
func (plan *forwardPlan) record(c *vk.Cmd, memory *vk.Buffer, y, x, w1, w2 vk.Tensor, p Problem, opt Options) error {
	y = y.Permute(1, 0, 2) // heads first, as the batch of the products
	for i := range plan.parts {
		part := &plan.parts[i]
		if i > 0 {
			c.Barrier() // what is in memory takes the place of what was before
		}
		if err := part.record(c, memory, part.of(y), x, part.of(w1), part.of(w2), part.ofPre(opt.Pre), p, opt); err != nil {
			return err
		}
	}
	return nil
}

// Backward computes the gradients of a loss by x, w1 and w2, given that by y, dy:
//
//	dpre[k] = (dy[:, k] * w2[k]ᵀ) ∘ silu'(pre[k])
//	dx      = sum over k of dpre[k] * w1[k]ᵀ
//	dw1[k]  = xᵀ * dpre[k]     dw2[k] = silu(pre[k])ᵀ * dy[:, k]
//
// Shapes are those of what they are the gradients of, see Forward; dw1 and dw2 are of
// p.Grad, the rest of p.DType. Pre is opt.Pre, or computed again from x and w1. Dx, dw1 and
// dw2 have memory of their own.
//
// Records, waits for, and returns errors as Forward does.
func Backward(c *vk.Cmd, dx, dw1, dw2, dy, x, w1, w2 vk.Tensor, p Problem, opt Options) error {
	keep := opt.keeps()
	plan, err := newBackwardPlan(c.Device().Caps(), p, opt, keep)
	if err != nil {
		return err
	}
	err = check(dx, dw1, dw2, x, w1, w2, p,
		argument.New("dy", dy, true, p.DType, p.YShape()),
		argument.New("pre", opt.Pre, keep == KeepPre, p.DType, p.PreShape()))
	if err != nil {
		return err
	}
	memory, err := plan.memory.Buffer(c, "grouped", opt.Workspace)
	if err != nil {
		return err
	}
	return plan.record(c, memory, dx, dw1, dw2, dy, x, w1, w2, p, opt)
}

// check checks the tensors of a backward pass; more are further inputs.
func check(dx, dw1, dw2, x, w1, w2 vk.Tensor, p Problem, more ...argument.Argument) error {
	return argument.Check("grouped", append(more,
		argument.New("x", x, true, p.DType, p.XShape()),
		argument.New("w1", w1, true, p.DType, p.W1Shape()),
		argument.New("w2", w2, true, p.DType, p.W2Shape()),
	), []argument.Argument{
		argument.New("dx", dx, true, p.DType, p.XShape()),
		argument.New("dw1", dw1, true, p.Grad, p.W1Shape()),
		argument.New("dw2", dw2, true, p.Grad, p.W2Shape()),
	})
}

// record records the parts one after the other.
func (plan *backwardPlan) record(c *vk.Cmd, memory *vk.Buffer, dx, dw1, dw2, dy, x, w1, w2 vk.Tensor, p Problem, opt Options) error {
	dy = dy.Permute(1, 0, 2) // heads first, as the batch of the products
	for i := range plan.parts {
		part := &plan.parts[i]
		if i > 0 {
			c.Barrier() // these heads take the memory of those before, and add to their dx
		}
		if err := part.record(c, memory, dx, part.of(dw1), part.of(dw2), part.of(dy), x, part.of(w1), part.of(w2), part.ofPre(opt.Pre), p, opt); err != nil {
			return err
		}
	}
	return nil
}

// record records the gradients of some heads, whose tensors are (heads, rows, columns): what
// makes dpre, beside copies of operands, and then the gradients, side by side.
func (b *backwardPart) record(c *vk.Cmd, memory *vk.Buffer, dx, dw1, dw2, dy, x, w1, w2, pre vk.Tensor, p Problem, opt Options) error {
	if !b.fused {
		first, err := b.preSteps(c, memory, x, pre, p)
		if err != nil {
			return err
		}
		rest, err := b.gradientSteps(c, memory, dx, dw1, dw2, dy, x, w2, pre, p)
		if err != nil {
			return err
		}
		return slices.Concat(steps.Together(b.copyStep(memory, w1, p), first.Copies, rest.Copies), first.Product, rest.Product).Record(c)
	}
	first, err := b.narrowSteps(c, memory, dw2, dy, x, w2, pre, p, opt.Impl)
	if err != nil {
		return fmt.Errorf("grouped: %w", err)
	}
	rest, err := b.productSteps(c, memory, dx, dw1, x, p)
	if err != nil {
		return err
	}
	copies, dpre, sums := steps.Together(b.copyStep(memory, w1, p), first.Copies, rest.Copies), first.Product[:1], first.Product[1:]
	if b.keep == KeepPre { // nothing of what is copied is for dpre
		copies, dpre = steps.Together(copies, dpre), nil
	}
	return slices.Concat(copies, dpre, steps.Together(rest.Product, sums)).Record(c)
}

// narrowSteps returns two steps, of which the first writes dpre and the second dw2.
func (b *backwardPart) narrowSteps(c *vk.Cmd, memory *vk.Buffer, dw2, dy, x, w2, pre vk.Tensor, p Problem, impl gemm.Impl) (gemm.Steps, error) {
	dpre := b.units(memory, b.dpre, p)
	opt := gemm.Options{Impl: impl, AlignedB: true, Workspace: memory, WorkspaceOffset: b.sums}
	if b.keep == KeepPre {
		return gemm.NarrowDSiLUSteps(c, dpre, dw2, dy, pre, w2, b.narrow, opt)
	}
	return gemm.NarrowBackwardSteps(c, dpre, dw2, dy, b.repeat(x), b.weights(memory, b.w1, p), w2, p.Out, b.narrow, opt)
}

// copyStep returns the copy of w1.
func (b *backwardPart) copyStep(memory *vk.Buffer, w1 vk.Tensor, p Problem) steps.List {
	to := b.weights(memory, b.w1, p).Narrow()
	return steps.List{func(c *vk.Cmd) error { return gemm.Pad(c, to, w1) }}
}

// preSteps returns pre, and silu(pre) where that is early. Of a pre that is kept, it returns
// the zeros behind it.
func (b *backwardPart) preSteps(c *vk.Cmd, memory *vk.Buffer, x, pre vk.Tensor, p Problem) (gemm.Steps, error) {
	if b.keep == KeepPre {
		return gemm.Steps{Copies: b.zeroStep(memory, pre, p)}, nil
	}
	// With the zeros of the copy, pre gets its zeros, too; dpre takes its place, beside them.
	padded := p
	padded.Hidden = hiddenStride(p)
	dst, keep := b.units(memory, b.dpre, padded), none
	if b.early {
		dst, keep = b.units(memory, b.silu, padded), dst
	}
	return b.pre.Steps(c, memory, dst, b.repeat(x), b.weights(memory, b.w1, padded), keep, none)
}

// zeroStep returns what writes the zeros behind dpre of each head: a copy of the last columns
// of pre with the zeros that gemm.Pad adds; none where a head has no zeros. Dpre takes the place
// of those columns.
func (b *backwardPart) zeroStep(memory *vk.Buffer, pre vk.Tensor, p Problem) steps.List {
	last := p.Hidden % unit(p)
	if last == 0 {
		return nil
	}
	tail := func(t vk.Tensor) vk.Tensor {
		t.Shape, t.Offset = []int{b.n, p.Tokens, last}, t.Offset+p.Hidden-last
		return t.Narrow()
	}
	to, from := tail(b.units(memory, b.dpre, p)), tail(pre)
	return steps.List{func(c *vk.Cmd) error { return gemm.Pad(c, to, from) }}
}

// gradientSteps returns what follows from pre, which is where dpre will be unless it is given,
// and dy. Operands that are copied are not in our memory.
func (b *backwardPart) gradientSteps(c *vk.Cmd, memory *vk.Buffer, dx, dw1, dw2, dy, x, w2, pre vk.Tensor, p Problem) (s gemm.Steps, err error) {
	silu, dpre := b.units(memory, b.silu, p), b.units(memory, b.dpre, p)
	if pre.IsZero() {
		pre = dpre
	}
	late := silu
	if b.early {
		late = none
	}
	gradient, err := b.gradient.Steps(c, memory, dpre, dy, w2, pre, late)
	if err != nil {
		return s, err
	}
	ofW2, err := b.dw2.Steps(c, memory, dw2, silu, dy, none, none)
	if err != nil {
		return s, err
	}
	rest, err := b.productSteps(c, memory, dx, dw1, x, p)
	s.Copies = steps.Together(gradient.Copies, ofW2.Copies, rest.Copies)
	s.Product = slices.Concat(gradient.Product, steps.Together(ofW2.Product, rest.Product))
	return s, err
}

// productSteps returns the gradients that are products with dpre, side by side.
func (b *backwardPart) productSteps(c *vk.Cmd, memory *vk.Buffer, dx, dw1, x vk.Tensor, p Problem) (s gemm.Steps, err error) {
	ofW1, err := b.dw1.Steps(c, memory, dw1, b.repeat(x), b.units(memory, b.dpre, p), none, none)
	if err != nil {
		return s, err
	}
	ofX, err := b.dx.Steps(c, memory, dx, b.rows(memory, b.dpre, p.Tokens, p), b.rows(memory, b.w1, p.In, p), none, none)
	s.Copies, s.Product = steps.Together(ofW1.Copies, ofX.Copies), steps.Together(ofW1.Product, ofX.Product)
	return s, err
}

// ForwardWorkspace returns the bytes of device memory that Forward takes between its
// products with the same options; keep says whether opt.Pre will be there.
func ForwardWorkspace(caps *vk.Caps, p Problem, opt Options, keep Keep) (int64, error) {
	plan, err := newForwardPlan(caps, p, opt, keep)
	return plan.memory.Bytes, err
}

// BackwardWorkspace returns the same of Backward.
func BackwardWorkspace(caps *vk.Caps, p Problem, opt Options, keep Keep) (int64, error) {
	plan, err := newBackwardPlan(caps, p, opt, keep)
	return plan.memory.Bytes, err
}

// Describe says what runs for the products of a pass on the first heads, in their order,
// for tables: the same only once. Keep is that of ForwardWorkspace.
func Describe(caps *vk.Caps, p Problem, opt Options, backward bool, keep Keep) (string, error) {
	if backward {
		plan, err := newBackwardPlan(caps, p, opt, keep)
		if err != nil {
			return "", err
		}
		return plan.parts[0].describe(caps, p, opt.Impl)
	}
	plan, err := newForwardPlan(caps, p, opt, keep)
	if err != nil {
		return "", err
	}
	return plan.parts[0].describe(caps, p, opt.Impl)
}
