package grouped

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/steps"
)

// A Loss records the gradient of a loss by y, given y of all heads: y is (tokens, heads,
// out) in float32, dy the same of p.DType, with any strides and a contiguous last axis. What
// it reads is visible; a Barrier comes after it.
type Loss func(c *vk.Cmd, dy, y vk.Tensor) error

// BackwardLoss computes what Backward does, for a caller who has neither y nor dy: y is
// computed once more, in the workspace, and loss makes dy of it there.
//
// Where silu(pre) of all heads is in memory at a time, y comes of that, and costs a product
// with w2; else, and where Backward writes no silu(pre), it is that of Forward, before all
// gradients, and costs one with w1, too. Both are in the workspace, with 8 elements or more for each token and head in dy.
//
// Records, waits for, and returns errors as Backward does, and what loss returns. It takes no
// opt.Pre: a caller who has pre had y, and calls Backward.
func BackwardLoss(c *vk.Cmd, dx, dw1, dw2, x, w1, w2 vk.Tensor, loss Loss, p Problem, opt Options) error {
	if opt.keeps() != KeepNothing {
		return fmt.Errorf("grouped: pre is given, but BackwardLoss computes it")
	}
	plan, err := newLossPlan(c.Device().Caps(), p, opt)
	if err != nil {
		return err
	}
	if err := check(dx, dw1, dw2, x, w1, w2, p); err != nil {
		return err
	}
	memory, err := plan.memory.Buffer(c, "grouped", opt.Workspace)
	if err != nil {
		return err
	}
	y, dy := plan.tensors(memory, p)
	if plan.forward == nil {
		part := &plan.backward.parts[0]
		pre, err := part.preSteps(c, memory, x, none, p)
		if err != nil {
			return err
		}
		outputs, err := part.y.Steps(c, memory, y.Permute(1, 0, 2), part.units(memory, part.silu, p), w2, none, none)
		if err != nil {
			return err
		}
		rest, err := part.gradientSteps(c, memory, dx, dw1, dw2, dy.Permute(1, 0, 2), x, w2, none, p)
		if err != nil {
			return err
		}
		first := steps.Together(part.copyStep(memory, w1, p), pre.Copies, outputs.Copies)
		lossStep := func(c *vk.Cmd) error { return loss(c, dy, y) }
		return slices.Concat(first, pre.Product, outputs.Product, steps.List{lossStep}, rest.Copies, rest.Product).Record(c)
	}
	if err := plan.forward.record(c, memory, y, x, w1, w2, p, opt); err != nil {
		return err
	}
	c.Barrier() // y is written
	if err := loss(c, dy, y); err != nil {
		return err
	}
	c.Barrier() // dy is written, and the workspace of y read
	return plan.backward.record(c, memory, dx, dw1, dw2, dy, x, w1, w2, p, opt)
}

// A lossPlan is what BackwardLoss runs.
type lossPlan struct {
	memory   chain.Memory
	forward  *forwardPlan // y, unless it comes of the hidden units of the backward pass
	backward backwardPlan
	y, dy    int64 // where they lie
}

func newLossPlan(caps *vk.Caps, p Problem, opt Options) (plan lossPlan, err error) {
	if err := p.Validate(); err != nil {
		return plan, err
	}
	fused, err := fusesBackward(caps, p, opt)
	if err != nil {
		return plan, err
	}
	list, err := divide(p, opt, hiddenBytes(p))
	if err != nil {
		return plan, err
	}
	if len(list) == 1 && !fused {
		part, bytes, err := newBackwardPart(caps, p, list[0], opt.Impl, KeepNothing, false, true)
		if err != nil {
			return plan, err
		}
		plan.backward.parts = []backwardPart{part}
		plan.memory.Take(bytes)
	} else {
		opt.Float32 = true
		forward, err := newForwardPlan(caps, p, opt, KeepNothing)
		if err != nil {
			return plan, err
		}
		if plan.backward, err = newBackwardPlan(caps, p, opt, KeepNothing); err != nil {
			return plan, err
		}
		plan.forward = &forward
		plan.memory.Take(max(forward.memory.Bytes, plan.backward.memory.Bytes))
	}
	outputs := int64(p.Tokens) * int64(p.Heads)
	plan.y = plan.memory.Take(4 * outputs * int64(p.Out))
	plan.dy = plan.memory.Take(int64(p.DType.Size()) * outputs * int64(dyStride(p)))
	return plan, nil
}

// dyStride returns the elements from head to head of dy in memory: rows of operands that
// start at multiples of 8 elements need no copy.
func dyStride(p Problem) int { return (p.Out + 7) / 8 * 8 }

// tensors returns y and dy.
func (plan *lossPlan) tensors(memory *vk.Buffer, p Problem) (y, dy vk.Tensor) {
	y = vk.View(memory, dtype.Float32, p.YShape()...)
	y.Offset = int(plan.y / 4)
	stride := dyStride(p)
	dy = vk.Tensor{
		Buffer: memory, DType: p.DType, Offset: int(plan.dy) / p.DType.Size(),
		Shape: p.YShape(), Strides: []int{p.Heads * stride, stride, 1},
	}
	return y, dy
}

// BackwardLossWorkspace returns the bytes of device memory that BackwardLoss takes with the
// same options.
func BackwardLossWorkspace(caps *vk.Caps, p Problem, opt Options) (int64, error) {
	plan, err := newLossPlan(caps, p, opt)
	return plan.memory.Bytes, err
}

// DescribeLoss says what runs for the products of BackwardLoss, as Describe does.
func DescribeLoss(caps *vk.Caps, p Problem, opt Options) (string, error) {
	plan, err := newLossPlan(caps, p, opt)
	if err != nil {
		return "", err
	}
	gradients, err := plan.backward.parts[0].describe(caps, p, opt.Impl)
	if plan.forward == nil || err != nil {
		return gradients, err
	}
	y, err := plan.forward.parts[0].describe(caps, p, opt.Impl)
	return y + " | " + gradients, err
}
