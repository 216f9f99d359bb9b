package mlp

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// A Loss records the gradient of a loss by y. Y is of Problem.YShape and float32. Dy has the same
// shape and is of p.DType. Both have any strides and a contiguous last axis.
type Loss func(c *vk.Cmd, dy, y vk.Tensor) error

// BackwardLoss computes the gradients of Backward for a caller who has neither y nor dy. It computes y
// once more, and loss computes dy from it.
//
// Where silu(pre) of all heads is in memory at a time, y is its product with W2. Elsewhere, and
// where Backward writes no silu(pre), y is computed before all gradients as in Forward, with a
// product with W1, too. Y and dy lie in the workspace; dy has 8 elements or more for each token
// and head.
//
// BackwardLoss records into c and returns as Backward does. Errors are the errors of Backward and
// of loss. P.Keep must be KeepNothing: a caller who has pre also has y, and calls Backward.
func BackwardLoss(c *vk.Cmd, t Tensors, g Gradients, loss Loss, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	plan, err := newLossPlan(c.Device().Caps(), p, o)
	if err != nil {
		return err
	}
	memory, err := open(c, plan.memory, t, g, p, o, false)
	if err != nil {
		return err
	}
	t.Y, g.DY = plan.tensors(memory, p)
	if plan.forward == nil {
		return plan.backward.parts[0].recordLoss(c, memory, t, g, loss, p)
	}
	wide := p
	wide.Float32 = true
	if err := plan.forward.record(c, memory, t, wide, o); err != nil {
		return err
	}
	if err := loss(c, g.DY, t.Y); err != nil {
		return err
	}
	return plan.backward.record(c, memory, t, g, p, o)
}

// recordLoss records y, from the hidden units of the backward pass, the loss, and the gradients.
func (b *backwardPart) recordLoss(c *vk.Cmd, memory *vk.Buffer, t Tensors, g Gradients, loss Loss, p Problem) error {
	dy, y := g.DY, t.Y
	t, g = b.tensors(t, p), b.gradients(g, p)
	pre, err := b.preSteps(c, memory, t, p)
	if err != nil {
		return err
	}
	outputs, err := b.y.Steps(c, memory, engine.Tensors{A: b.hiddenUnits(memory, b.silu, p.Hidden, p), B: t.W2, C: t.Y})
	if err != nil {
		return err
	}
	rest, err := b.dpreSteps(c, memory, t, g, p)
	if err != nil {
		return err
	}
	lossStep := func(c *vk.Cmd) error { return loss(c, dy, y) }
	return slices.Concat(
		steps.Together(pre.Copies, outputs.Copies), pre.Product, outputs.Product, steps.List{lossStep},
		steps.Together(rest.gradient.Copies, rest.dw2.Copies, rest.more.Copies), rest.gradient.Product,
		steps.Together(rest.dw2.Product, rest.more.Product),
	).Record(c)
}

// A lossPlan is what BackwardLoss runs.
type lossPlan struct {
	memory   chain.Memory
	forward  *forwardPlan // makes y; nil if the hidden units of the backward pass do
	backward backwardPlan
	y, dy    int64 // where they lie
}

func newLossPlan(caps *vk.Caps, p Problem, o Options) (plan lossPlan, err error) {
	if err := validate(p, o); err != nil {
		return plan, err
	}
	if p.Keep != KeepNothing {
		return plan, fmt.Errorf("mlp: keep=%v, but BackwardLoss computes pre", p.Keep)
	}
	fused, err := fusesBackward(caps, p, o)
	if err != nil {
		return plan, err
	}
	list := divide(p, o, hiddenBytes(p))
	if len(list) == 1 && !fused {
		part, bytes, err := newBackwardPart(caps, p, o, list[0], false, true)
		if err != nil {
			return plan, err
		}
		plan.backward.parts = []backwardPart{part}
		plan.memory.Take(bytes)
	} else {
		wide := p
		wide.Float32 = true
		forward, err := newForwardPlan(caps, wide, o)
		if err != nil {
			return plan, err
		}
		if plan.backward, err = newBackwardPlan(caps, p, o); err != nil {
			return plan, err
		}
		plan.forward = &forward
		plan.memory.Take(max(forward.memory.Bytes, plan.backward.memory.Bytes))
	}
	outputs := int64(p.Tokens) * int64(p.heads())
	plan.y = plan.memory.Take(4 * outputs * int64(p.Out))
	plan.dy = plan.memory.Take(int64(p.DType.Size()) * outputs * int64(dyStride(p)))
	return plan, nil
}

// dyStride returns the elements from head to head of dy in memory. Rows that start at multiples
// of 8 elements need no copy as operands.
func dyStride(p Problem) int { return (p.Out + 7) / 8 * 8 }

func (plan *lossPlan) tensors(memory *vk.Buffer, p Problem) (y, dy vk.Tensor) {
	y = vk.View(memory, dtype.Float32, p.YShape()...)
	y.Offset = int(plan.y / 4)
	dy = vk.View(memory, p.DType, p.YShape()...)
	dy.Offset = int(plan.dy) / p.DType.Size()
	stride := dyStride(p)
	dy.Strides = []int{p.heads() * stride, stride, 1}
	if p.Heads == 0 {
		dy.Strides = []int{stride, 1}
	}
	return y, dy
}

// ChooseLoss returns how BackwardLoss would run on a device, as Choose does. Loss names the
// kernels that the Loss records, and Plan.Kernels has them in their place.
func ChooseLoss(caps *vk.Caps, p Problem, o Options, loss ...string) (runs Plan, err error) {
	plan, err := newLossPlan(caps, p, o)
	if err != nil {
		return Plan{}, err
	}
	var gradients Plan
	plan.backward.parts[0].describe(&gradients, p, loss...)
	if plan.forward != nil {
		plan.forward.parts[0].describe(&runs)
		runs.words = []string{runs.String()}
		runs.kernels = append(runs.kernels, loss...)
	}
	runs.bytes = plan.memory.Bytes
	runs.add(gradients.String(), gradients.kernels...)
	runs.parts = append(runs.parts, gradients.parts...)
	for i := range plan.backward.parts {
		runs.also(func(later *Plan) { plan.backward.parts[i].describe(later, p, loss...) })
	}
	if plan.forward != nil {
		for i := range plan.forward.parts {
			runs.also(plan.forward.parts[i].describe)
		}
	}
	return runs, nil
}
