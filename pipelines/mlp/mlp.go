// Package mlp computes a two-layer perceptron and its gradients on a Vulkan device.
//
//	pre = x * W1
//	y   = silu(pre) * W2                       silu(v) = v / (1 + exp(-v))
//
//	dpre = (dy * W2ᵀ) ∘ silu'(pre)
//	dx   = dpre * W1ᵀ     dW1 = xᵀ * dpre     dW2 = silu(pre)ᵀ * dy
//
// [Forward] is two products of package gemm, the first with silu in its epilogue, or, where
// that was measured to be faster, one kernel whose hidden units never reach memory
// (Options.Fused); [Backward] is four products, of which dy * W2ᵀ multiplies by silu'(pre),
// and unless the caller kept silu(pre) writes it while it is at it, and one more to compute
// pre again unless the caller kept that:
//
//	what is kept               elements of DType for each token    products of Backward   what they write between them
//	nothing                    0                                   5                      3 * hidden for each token
//	Options.Pre                hidden                              4                      2 * hidden
//	Options.Pre and Hidden     2 * hidden                          4                      hidden
//
// Rows of hidden units lie gemm.RowStride elements apart in memory of our own, so that
// odd widths such as 1365 cost nothing there. Those of Options.Pre and Options.Hidden should
// lie so, too.
//
// What is in memory between products is rounded to DType. A pre that it cannot hold, beyond
// 65504 in float16, is an infinity there, of which the backward pass makes NaN.
//
// Products of the backward pass that need nothing of each other run side by side.
//
// All is deterministic: the same call on the same device gives the same bits.
// Functions are safe for concurrent use, as far as what they are given is: a vk.Cmd
// belongs to one goroutine.
package mlp

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/pipelines/mlp/problem"
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
	// Fused forces one kernel for the forward pass, or two products.
	Fused Fused
	// FusedConfig forces one kernel, too, and its configuration, which must be feasible. It
	// is for tuning and tests.
	FusedConfig *gemm.PairConfig
	// Pre is pre, which Forward writes, or Backward reads; the zero Tensor leaves it out,
	// and Backward computes it. Hidden, which only goes with Pre, is the same of silu(pre).
	Pre, Hidden vk.Tensor
	// Workspace is memory for what is between the products, ForwardWorkspace or
	// BackwardWorkspace bytes of it, that nothing else uses until the commands have
	// completed: a second call in the same Cmd comes after a Barrier. Nil takes memory of
	// the Cmd.
	Workspace *vk.Buffer
}

// Keep says what Forward leaves to Backward.
type Keep = chain.Keep

// What there is to choose from. PyTorch's autograd keeps both.
const (
	KeepNothing = chain.KeepNothing
	KeepPre     = chain.KeepPre    // Options.Pre
	KeepHidden  = chain.KeepHidden // Options.Pre and Options.Hidden
)

// Keeps lists them.
func Keeps() []Keep { return []Keep{KeepNothing, KeepPre, KeepHidden} }

// keeps returns what the tensors of o keep.
func (o *Options) keeps() (Keep, error) {
	switch {
	case !o.Hidden.IsZero() && o.Pre.IsZero():
		return 0, fmt.Errorf("mlp: hidden is given without pre: gradients need both, or pre alone")
	case !o.Hidden.IsZero():
		return KeepHidden, nil
	case !o.Pre.IsZero():
		return KeepPre, nil
	}
	return KeepNothing, nil
}

// none stands for a tensor that a product does not have.
var none vk.Tensor

// Forward computes
//
//	y = silu(x * W1) * W2
//
// x is (tokens, in), w1 (in, hidden), w2 (hidden, out) and y (tokens, out), opt.Pre and
// opt.Hidden, if they are there, (tokens, hidden), all of p.DType, with any distance between
// rows. Distances and offsets that are multiples of 8 elements are fastest. Y, opt.Pre and
// opt.Hidden have memory of their own. A row of x with an infinity gives NaNs where it meets
// weights of both signs, and may where it does not.
//
// Forward records into c and returns; y, opt.Pre and opt.Hidden are valid once c has
// completed. The inputs must be written and visible by then: after another kernel of the
// same Cmd, a c.Barrier() comes before Forward, and one after it before y is read.
//
// It returns an error that wraps ErrUnsupported if no path on the device handles p, or not
// the one kernel that opt forces, and an error naming the argument if a tensor does not fit
// p.
func Forward(c *vk.Cmd, y, x, w1, w2 vk.Tensor, p Problem, opt Options) error {
	keep, err := opt.keeps()
	if err != nil {
		return err
	}
	plan, err := newForwardPlan(c.Device().Caps(), p, &opt, keep)
	if err != nil {
		return err
	}
	err = argument.Check("mlp", []argument.Argument{
		argument.New("x", x, true, p.DType, p.XShape()),
		argument.New("w1", w1, true, p.DType, p.W1Shape()),
		argument.New("w2", w2, true, p.DType, p.W2Shape()),
	}, []argument.Argument{
		argument.New("y", y, true, p.DType, p.YShape()),
		argument.New("pre", opt.Pre, keep >= KeepPre, p.DType, p.PreShape()),
		argument.New("hidden", opt.Hidden, keep == KeepHidden, p.DType, p.PreShape()),
	})
	if err != nil {
		return err
	}
	memory, err := plan.memory.Buffer(c, "mlp", opt.Workspace)
	if err != nil {
		return err
	}
	if plan.fused != nil {
		return plan.fused.record(c, memory, y, x, w1, w2)
	}
	hidden := opt.Hidden
	if hidden.IsZero() {
		hidden = hiddenTensor(memory, plan.hidden, p)
		hidden.Shape = []int{p.Tokens, plan.units}
	}
	first, err := plan.first.Steps(c, memory, hidden, x, w1, opt.Pre, none)
	if err != nil {
		return err
	}
	second, err := plan.second.Steps(c, memory, y, hidden, w2, none, none)
	if err != nil {
		return err
	}
	return slices.Concat(steps.Together(first.Copies, second.Copies), first.Product, second.Product).Record(c)
}

// Backward computes the gradients of a loss by x, w1 and w2, given that by y, dy:
//
//	dpre = (dy * W2ᵀ) ∘ silu'(pre)
//	dx   = dpre * W1ᵀ     dW1 = xᵀ * dpre     dW2 = silu(pre)ᵀ * dy
//
// Shapes are those of what they are the gradients of, see Forward; dw1 and dw2 are of
// p.Grad, the rest of p.DType. Pre is opt.Pre, or computed again from x and w1, and silu(pre)
// is opt.Hidden, or computed from pre. Dx, dw1 and dw2 have memory of their own. A row of dy with
// an infinity gives NaNs, as one of x does in Forward.
//
// Records, waits for, and returns errors as Forward does.
func Backward(c *vk.Cmd, dx, dw1, dw2, dy, x, w1, w2 vk.Tensor, p Problem, opt Options) error {
	keep, err := opt.keeps()
	if err != nil {
		return err
	}
	plan, err := newBackwardPlan(c.Device().Caps(), p, &opt, keep)
	if err != nil {
		return err
	}
	err = argument.Check("mlp", []argument.Argument{
		argument.New("dy", dy, true, p.DType, p.YShape()),
		argument.New("x", x, true, p.DType, p.XShape()),
		argument.New("w1", w1, true, p.DType, p.W1Shape()),
		argument.New("w2", w2, true, p.DType, p.W2Shape()),
		argument.New("pre", opt.Pre, keep >= KeepPre, p.DType, p.PreShape()),
		argument.New("hidden", opt.Hidden, keep == KeepHidden, p.DType, p.PreShape()),
	}, []argument.Argument{
		argument.New("dx", dx, true, p.DType, p.XShape()),
		argument.New("dw1", dw1, true, p.Grad, p.W1Shape()),
		argument.New("dw2", dw2, true, p.Grad, p.W2Shape()),
	})
	if err != nil {
		return err
	}
	memory, err := plan.memory.Buffer(c, "mlp", opt.Workspace)
	if err != nil {
		return err
	}
	list, err := plan.steps(c, memory, dx, dw1, dw2, dy, x, w1, w2, p, &opt)
	if err != nil {
		return err
	}
	return list.Record(c)
}

// steps returns what Backward records: the products that make dpre, and silu(pre) unless that
// is kept, beside copies of operands of the gradients, and then the gradients, side by side.
func (plan *backwardPlan) steps(c *vk.Cmd, memory *vk.Buffer, dx, dw1, dw2, dy, x, w1, w2 vk.Tensor, p Problem, opt *Options) (steps.List, error) {
	var err error
	product := func(x *chain.Product, dst, a, b, pre, silu vk.Tensor) (k gemm.Steps) {
		if err == nil {
			k, err = x.Steps(c, memory, dst, a, b, pre, silu)
		}
		return k
	}
	dpre, pre, hidden, late := hiddenTensor(memory, plan.dpre, p), opt.Pre, opt.Hidden, none
	whole := dpre // with the units that W1 and W2 have not
	whole.Shape = []int{p.Tokens, plan.units}
	if hidden.IsZero() {
		hidden = hiddenTensor(memory, plan.hidden, p)
		late = hidden
		late.Shape = whole.Shape
	}
	var again gemm.Steps
	if pre.IsZero() {
		pre = late // and silu(pre) takes its place
		again = product(&plan.pre, pre, x, w1, none, none)
	}
	gradient := product(&plan.gradient, whole, dy, w2, pre, late)
	ofW2, ofW1, ofX := product(&plan.dw2, dw2, hidden, dy, none, none), product(&plan.dw1, dw1, x, dpre, none, none), product(&plan.dx, dx, whole, w1, none, none)
	// Operands that are copied are the caller's, there from the start.
	copies := steps.Together(ofW1.Copies, ofX.Copies)
	first := slices.Concat(steps.Together(again.Copies, gradient.Copies), again.Product, gradient.Product)
	if late.IsZero() { // so is silu(pre); workgroups that go over all tokens come first
		return steps.Together(
			slices.Concat(ofW2.Copies, ofW2.Product),
			slices.Concat(steps.Together(copies, first), steps.Together(ofW1.Product, ofX.Product)),
		), err
	}
	return slices.Concat(
		steps.Together(ofW2.Copies, copies, first),
		steps.Together(ofW2.Product, ofW1.Product, ofX.Product),
	), err
}

// ForwardWorkspace returns the bytes of device memory that Forward takes with the same
// options for what is between its kernels; keep says which of opt.Pre and opt.Hidden will be
// there.
func ForwardWorkspace(caps *vk.Caps, p Problem, opt Options, keep Keep) (int64, error) {
	plan, err := newForwardPlan(caps, p, &opt, keep)
	return plan.memory.Bytes, err
}

// BackwardWorkspace returns the same of Backward.
func BackwardWorkspace(caps *vk.Caps, p Problem, opt Options, keep Keep) (int64, error) {
	plan, err := newBackwardPlan(caps, p, &opt, keep)
	return plan.memory.Bytes, err
}

// Describe says what runs for the products of a pass, in their order, for tables: the
// same only once, and both of the forward pass as one if they are one kernel. Keep is that
// of ForwardWorkspace.
func Describe(caps *vk.Caps, p Problem, opt Options, backward bool, keep Keep) (string, error) {
	var configs []gemm.Config
	var err error
	if backward {
		var plan backwardPlan
		if plan, err = newBackwardPlan(caps, p, &opt, keep); err != nil {
			return "", err
		}
		configs = []gemm.Config{plan.gradient.Config(), plan.dw2.Config(), plan.dw1.Config(), plan.dx.Config()}
	} else {
		var plan forwardPlan
		if plan, err = newForwardPlan(caps, p, &opt, keep); err != nil {
			return "", err
		}
		if plan.fused != nil {
			return plan.fused.opt.Config.String(), nil
		}
		configs = []gemm.Config{plan.first.Config(), plan.second.Config()}
	}
	words := make([]string, 0, len(configs))
	for _, c := range slices.Compact(configs) {
		words = append(words, c.String())
	}
	return strings.Join(words, " | "), nil
}

// hiddenStride returns the distance of rows of hidden units in our memory.
func hiddenStride(p Problem) int { return gemm.RowStride(p.Hidden) }

// hiddenTensor returns a (tokens, hidden) tensor at a byte of memory.
func hiddenTensor(memory *vk.Buffer, at int64, p Problem) vk.Tensor {
	return vk.Tensor{
		Buffer: memory, DType: p.DType, Shape: p.PreShape(),
		Strides: []int{hiddenStride(p), 1}, Offset: int(at) / p.DType.Size(),
	}
}

// hiddenBytes returns the memory of such a tensor.
func hiddenBytes(p Problem) int64 {
	return int64(p.Tokens) * int64(hiddenStride(p)) * int64(p.DType.Size())
}
