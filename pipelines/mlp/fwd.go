package mlp

import (
	"errors"
	"slices"

	"github.com/flashvk/flashvk/internal/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/fused"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Forward computes
//
//	pre[:, k] = x * W1[k]
//	y[:, k]   = silu(pre[:, k]) * W2[k]
//
// X is (tokens, in), W1 (heads, in, hidden), W2 (heads, hidden, out), Y (tokens, heads, out), and
// Pre and Hidden are (tokens, heads, hidden). Without heads all lack that axis. All are of
// p.DType, but Y with p.Float32 is float32. They have any strides and a contiguous last axis.
// Strides and offsets that are multiples of 8 elements are fastest. Y, Pre and Hidden have memory
// of their own. A row of X with an infinity gives NaNs where it meets weights of both signs, and
// may elsewhere.
//
// Forward records into c and returns; Y, Pre and Hidden are valid once c has completed.
//
// It returns an error that wraps vk.ErrUnsupported if no path on the device handles p, or if o
// forces one kernel that does not. It returns an error naming the argument if a tensor does not
// fit p.
func Forward(c *vk.Cmd, t Tensors, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	plan, err := newForwardPlan(c.Device().Caps(), p, o)
	if err != nil {
		return err
	}
	pre, hidden := t.kept(p)
	memory, err := argument.Open(c, "mlp", o.Workspace, plan.memory.Bytes, t.inputs(p), []argument.Argument{
		argument.New("y", t.Y, true, p.yType(), p.YShape()), pre, hidden,
	})
	if err != nil {
		return err
	}
	return plan.record(c, memory, t, p, o)
}

// A forwardPlan is what Forward runs: one part after the other, all in the same memory.
type forwardPlan struct {
	memory chain.Memory
	parts  []forwardPart
}

// A forwardPart is what Forward runs for some heads: one kernel, or two products.
type forwardPart struct {
	heads
	one           *fused.Plan // both in one kernel
	skinny        *skinnyPart // both products in one kernel, for few outputs
	hidden        int64       // where silu(pre) lies, unless it is kept
	units         int         // of it: more than p.Hidden if W1 and W2 are extended by zeros
	first, second chain.Product
}

// A skinnyPart is a call of package skinny: its problem, and its plan.
type skinnyPart struct {
	problem engine.Problem
	plan    skinny.Plan
}

func newForwardPlan(caps *vk.Caps, p Problem, o Options) (plan forwardPlan, err error) {
	if err := validate(p, o); err != nil {
		return plan, err
	}
	one, bytes, err := newForwardPart(caps, p, o, heads{0, 1})
	if err != nil {
		return plan, err
	}
	if p.heads() == 1 {
		return forwardPlan{chain.Memory{Bytes: bytes}, []forwardPart{one}}, nil
	}
	if one.skinny == nil {
		bytes = hiddenBytes(p)
	}
	for _, h := range divide(p, o, bytes) {
		part, bytes, err := newForwardPart(caps, p, o, h)
		if err != nil {
			return plan, err
		}
		plan.memory.Bytes = max(plan.memory.Bytes, bytes)
		plan.parts = append(plan.parts, part)
	}
	return plan, nil
}

// newForwardPart returns what Forward runs for some heads, and its memory.
func newForwardPart(caps *vk.Caps, p Problem, o Options, h heads) (part forwardPart, bytes int64, err error) {
	part.heads = h
	if part.one, err = newOneKernel(caps, p, o); err != nil {
		return part, 0, err
	}
	if part.one != nil {
		return part, part.one.Workspace(), nil
	}
	activation := engine.SiLU
	if p.Keep >= KeepPre {
		activation = engine.SiLUKeep
	}
	if o.skinny(p) {
		product := engine.Problem{Batch: h.n, M: p.Tokens, N: p.Hidden, K: p.In, Activation: activation, DType: p.DType, Out: p.yType()}
		plan, err := skinny.ChooseForward(caps, product, p.Out, o.how(engine.Options{}))
		if err == nil {
			part.skinny = &skinnyPart{product, plan}
			return part, plan.Workspace(), nil
		}
		if !errors.Is(err, vk.ErrUnsupported) {
			return part, 0, wrap(err)
		}
	}
	var memory chain.Memory
	if p.Keep < KeepHidden {
		part.hidden = memory.Take(h.bytes(p.Tokens, p))
	}
	products := func(units int) []engine.Problem {
		return []engine.Problem{
			{Batch: h.n, M: p.Tokens, N: units, K: p.In, Activation: activation, DType: p.DType, Out: p.DType},
			{Batch: h.n, M: p.Tokens, N: p.Out, K: units, DType: p.DType, Out: p.yType()},
		}
	}
	part.units = unitsOf(caps, p, o, products)
	both, pad := products(part.units), part.units > p.Hidden
	if part.first, err = chain.NewProduct(caps, "mlp", &memory, both[0], o.how(engine.Options{PadB: pad})); err != nil {
		return part, 0, err
	}
	if p.Heads == 0 {
		memory.Keep() // operands of both are copied first; with heads the second product has the memory of the first
	}
	part.second, err = chain.NewProduct(caps, "mlp", &memory, both[1], o.how(engine.Options{AlignedA: true, PadB: pad}))
	return part, memory.Bytes, err
}

// unitsOf returns how many hidden units the products have: p.Hidden, or more, up to whole lines
// of a cache, where W1 and W2 count as zero. It pads them only for one perceptron whose hidden
// units are in the workspace alone, or in rows as long as that (Problem.Units), and only if all
// products pack op(B), since packing adds the zeros. Kernels then have no edge: 115.5 instead of
// 120 µs (forward, 11000 tokens, 1365 units, H200). Products returns the problems of the products
// that have W1 or W2 as op(B).
func unitsOf(caps *vk.Caps, p Problem, o Options, products func(units int) []engine.Problem) int {
	switch {
	case p.Units > 0: // NewProduct sees to it that kernels can
		return p.Units
	case p.Keep > KeepNothing || p.Heads > 0:
		return p.Hidden
	}
	return padded(caps, p, o, products(p.wholeLines()))
}

// padded returns the hidden units up to whole lines if all of these products have kernels that take
// a part of op(B) for the whole.
func padded(caps *vk.Caps, p Problem, o Options, products []engine.Problem) int {
	for _, x := range products {
		config, err := engine.Choose(caps, x, o.how(engine.Options{}))
		if err != nil || !config.PackB {
			return p.Hidden
		}
	}
	return p.wholeLines()
}

// KeptUnits returns the Problem.Units with which the passes of p are fastest on a device with the same
// options: p.Hidden, or with KeepHidden up to whole lines of memory. Where whole lines need packed
// operands that other options do not have, Forward and Backward return an error that wraps
// vk.ErrUnsupported.
func KeptUnits(caps *vk.Caps, p Problem, o Options) int {
	if p.Units = 0; p.Keep != KeepHidden || validate(p, o) != nil {
		return p.Hidden
	}
	units := p.wholeLines()
	return padded(caps, p, o, []engine.Problem{
		{Batch: 1, M: p.Tokens, N: units, K: p.In, Activation: engine.SiLUKeep, DType: p.DType, Out: p.DType},
		{Batch: 1, M: p.Tokens, N: p.Out, K: units, DType: p.DType, Out: p.yType()},
		{Batch: 1, M: p.Tokens, N: units, K: p.Out, TransB: true, Activation: engine.TimesDSiLU, DType: p.DType, Out: p.DType},
		{M: p.Tokens, N: p.In, K: units, TransB: true, DType: p.DType, Out: p.DType},
	})
}

// record records the parts one after the other.
func (plan *forwardPlan) record(c *vk.Cmd, memory *vk.Buffer, t Tensors, p Problem, o Options) error {
	for i := range plan.parts {
		part := &plan.parts[i]
		if err := part.record(c, memory, part.tensors(t, p), p, o); err != nil {
			return err
		}
	}
	return nil
}

// record records the outputs of some heads, whose tensors are (heads, rows, columns).
func (f *forwardPart) record(c *vk.Cmd, memory *vk.Buffer, t Tensors, p Problem, o Options) error {
	switch {
	case f.one != nil:
		return wrap(fused.Forward(c, fused.Tensors{X: t.X, W1: matrix(t.W1), W2: matrix(t.W2), Y: matrix(t.Y)}, *f.one, memory))
	case f.skinny != nil:
		tensors := skinny.Tensors{A: f.repeat(t.X), B: t.W1, W: t.W2, Y: t.Y, Pre: t.Pre}
		return wrap(skinny.Forward(c, tensors, p.Out, f.skinny.problem, o.how(engine.Options{Workspace: memory})))
	}
	hidden := t.Hidden
	if hidden.IsZero() {
		hidden = f.hiddenUnits(memory, f.hidden, f.units, p)
	}
	first, err := f.first.Steps(c, memory, engine.Tensors{A: f.repeat(t.X), B: t.W1, C: hidden, X: t.Pre})
	if err != nil {
		return err
	}
	second, err := f.second.Steps(c, memory, engine.Tensors{A: hidden, B: t.W2, C: t.Y})
	if err != nil {
		return err
	}
	if p.Heads > 0 {
		return slices.Concat(first.Copies, first.Product, second.Copies, second.Product).Record(c)
	}
	// W2 is copied beside the first product, whose last wave does not fill the device: 173.0
	// instead of 175.2 µs with the copy before it (18048 tokens, H200).
	return slices.Concat(first.Copies, steps.Together(first.Product, second.Copies), second.Product).Record(c)
}

// describe adds the kernels of f to a plan.
func (f *forwardPart) describe(plan *Plan) {
	switch {
	case f.one != nil:
		plan.add(f.one.String(), "gemm_pack", "gemm_pair")
		if f.one.Splits > 1 {
			plan.kernels = append(plan.kernels, "gemm_combine")
		}
	case f.skinny != nil:
		product := f.skinny.problem
		product.Activation = engine.SiLU // also if pre is kept
		plan.skinny(kit.Forward, product, f.skinny.plan.Config.String(), f.skinny.plan.Kernels("gemm_skinny"))
	default:
		plan.products(&f.first, &f.second)
	}
}

// wrap puts the name of this package before an error of another package.
func wrap(err error) error { return chain.Wrap("mlp", err) }
