package mlp

import (
	"errors"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Backward computes the gradients of a loss by X, W1 and W2 from DY, the gradient by Y:
//
//	dpre[:, k] = (dy[:, k] * W2[k]ᵀ) ∘ silu'(pre[:, k])
//	dx         = sum over k of dpre[:, k] * W1[k]ᵀ
//	dW1[k]     = xᵀ * dpre[:, k]     dW2[k] = silu(pre[:, k])ᵀ * dy[:, k]
//
// A gradient has the shape of its tensor, see Forward. DW1 and DW2 are of p.GradDType(), the rest
// of p.DType. Backward reads Pre and Hidden if p.Keep says so; else it computes pre again from X
// and W1, and silu(pre) from pre. It does not read Y. DX, DW1 and DW2 have memory of their own. A
// row of DY with an infinity gives NaNs, as a row of X does in Forward.
//
// Backward records into c and returns; gradients are valid once c has completed. Errors are as in
// Forward.
func Backward(c *vk.Cmd, t Tensors, g Gradients, p Problem, o Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	plan, err := newBackwardPlan(c.Device().Caps(), p, o)
	if err != nil {
		return err
	}
	memory, err := open(c, plan.memory, t, g, p, o, true)
	if err != nil {
		return err
	}
	return plan.record(c, memory, t, g, p, o)
}

// open checks the tensors of a backward pass, and returns its memory. Dy says whether it has a DY.
func open(c *vk.Cmd, m chain.Memory, t Tensors, g Gradients, p Problem, o Options, dy bool) (*vk.Buffer, error) {
	pre, hidden := t.kept(p)
	return argument.Open(c, "mlp", o.Workspace, m.Bytes, append(t.inputs(p), argument.New("dy", g.DY, dy, p.DType, p.YShape()), pre, hidden), []argument.Argument{
		argument.New("dx", g.DX, true, p.DType, p.XShape()),
		argument.New("dw1", g.DW1, true, p.GradDType(), p.W1Shape()),
		argument.New("dw2", g.DW2, true, p.GradDType(), p.W2Shape()),
	})
}

// A backwardPlan is what Backward runs: one part after the other, all in the same memory.
type backwardPlan struct {
	memory chain.Memory
	parts  []backwardPart
}

// A backwardPart is what Backward runs for some heads: three products or one kernel that make
// dpre and DW2, and then the products that make DW1 and DX.
type backwardPart struct {
	heads
	dpre    int64 // where dpre lies
	w1      int64 // of heads, where the copy of W1 lies
	dw1, dx chain.Product

	skinny *skinnyPart // the kernel that makes dpre and DW2; another one if pre is kept
	sums   int64       // where its workspace lies

	// Without skinny: where silu(pre) lies, unless it is kept. Pre lies where dpre comes later,
	// unless it is kept.
	silu               int64
	pre, gradient, dw2 chain.Product
	columns, units     int  // of pre and of dpre: more than p.Hidden where W1 and W2 are extended by zeros
	early              bool // silu(pre) comes with pre; else with the gradient
	y                  chain.Product
}

// fusesBackward reports whether one kernel makes dpre and DW2.
func fusesBackward(caps *vk.Caps, p Problem, o Options) (bool, error) {
	if !o.skinny(p) {
		return false, nil
	}
	p.Keep = KeepNothing
	_, err := skinny.ChooseBackward(caps, skinnyBackward(p, 1), p.Out, o.how(engine.Options{AlignedB: true}))
	if errors.Is(err, vk.ErrUnsupported) {
		return false, nil
	}
	return err == nil, wrap(err)
}

// skinnyBackward returns the products of n heads that one kernel computes: pre, or dy * W2ᵀ if pre
// is kept. Its sums have the format of DW2.
func skinnyBackward(p Problem, n int) engine.Problem {
	if p.Keep == KeepPre {
		return engine.Problem{Batch: n, M: p.Tokens, N: p.Hidden, K: p.Out, TransB: true, Activation: engine.TimesDSiLU, DType: p.DType, Out: p.GradDType()}
	}
	return engine.Problem{Batch: n, M: p.Tokens, N: p.Hidden, K: p.In, Activation: engine.SiLU, DType: p.DType, Out: p.GradDType()}
}

func newBackwardPlan(caps *vk.Caps, p Problem, o Options) (plan backwardPlan, err error) {
	if err := validate(p, o); err != nil {
		return plan, err
	}
	fused, err := fusesBackward(caps, p, o)
	if err != nil {
		return plan, err
	}
	bytes := hiddenBytes(p)
	if fused {
		bytes /= 2 // dpre has the memory of silu(pre), too
	}
	for _, h := range divide(p, o, bytes) {
		part, bytes, err := newBackwardPart(caps, p, o, h, fused, false)
		if err != nil {
			return plan, err
		}
		plan.memory.Bytes = max(plan.memory.Bytes, bytes)
		plan.parts = append(plan.parts, part)
	}
	return plan, nil
}

// newBackwardPart returns what Backward runs for some heads, and its memory. Outputs adds the
// product that makes y in float32; fused must be false then.
func newBackwardPart(caps *vk.Caps, p Problem, o Options, h heads, fused, outputs bool) (b backwardPart, bytes int64, err error) {
	var memory chain.Memory
	// A perceptron without heads makes silu(pre) with pre, as its forward pass does. So gradients
	// have the same bits whether it is kept or not: silu of a rounded pre would differ.
	b.heads, b.early = h, outputs || p.Keep == KeepNothing && p.Heads == 0
	b.dpre = memory.Take(h.bytes(p.Tokens, p))
	if p.Heads > 0 {
		b.w1 = memory.Take(h.bytes(p.In, p))
	}
	dx := engine.Problem{M: p.Tokens, N: p.In, K: h.n * hiddenStride(p), TransB: true, Residual: h.first > 0, DType: p.DType, Out: p.DType}
	opt := engine.Options{AlignedA: true, AlignedB: true}
	if fused {
		if bytes, err = b.addSkinny(caps, p, o); err != nil {
			return b, 0, wrap(err)
		}
		b.sums = memory.Take(bytes)
	} else if err := b.addProducts(caps, &memory, p, o, outputs); err != nil {
		return b, 0, err
	}
	if p.Heads == 0 {
		dx.K, opt = b.units, engine.Options{AlignedA: true, PadB: b.units > p.Hidden}
	}
	dw1 := engine.Problem{Batch: h.n, M: p.In, N: p.Hidden, K: p.Tokens, TransA: true, DType: p.DType, Out: p.GradDType()}
	if b.dw1, err = chain.NewProduct(caps, "mlp", &memory, dw1, o.how(engine.Options{AlignedB: true})); err != nil {
		return b, 0, err
	}
	memory.Keep() // they run side by side
	b.dx, err = chain.NewProduct(caps, "mlp", &memory, dx, o.how(opt))
	return b, memory.Bytes, err
}

// addSkinny adds the kernel that makes dpre and DW2, and returns its memory.
func (b *backwardPart) addSkinny(caps *vk.Caps, p Problem, o Options) (int64, error) {
	b.skinny = &skinnyPart{problem: skinnyBackward(p, b.n)}
	var err error
	if p.Keep == KeepPre {
		b.skinny.plan, err = skinny.ChooseKept(caps, b.skinny.problem)
	} else {
		b.skinny.plan, err = skinny.ChooseBackward(caps, b.skinny.problem, p.Out, o.how(engine.Options{AlignedB: true}))
	}
	return b.skinny.plan.Workspace(), err
}

// addProducts adds the products that make dpre and DW2.
func (b *backwardPart) addProducts(caps *vk.Caps, memory *chain.Memory, p Problem, o Options, outputs bool) (err error) {
	ofPre, ofGradient := engine.Identity, engine.TimesDSiLUKeep
	if p.Keep < KeepHidden {
		b.silu = memory.Take(b.bytes(p.Tokens, p))
	} else {
		ofGradient = engine.TimesDSiLU
	}
	if b.early {
		ofPre, ofGradient = engine.SiLUKeep, engine.TimesDSiLU
	}
	if outputs {
		y := engine.Problem{Batch: b.n, M: p.Tokens, N: p.Out, K: p.Hidden, DType: p.DType, Out: dtype.Float32}
		if b.y, err = chain.NewProduct(caps, "mlp", memory, y, o.how(engine.Options{AlignedA: true})); err != nil {
			return err
		}
		memory.Keep()
	}
	products := func(columns, units int) []engine.Problem {
		return []engine.Problem{
			{Batch: b.n, M: p.Tokens, N: columns, K: p.In, Activation: ofPre, DType: p.DType, Out: p.DType},
			{Batch: b.n, M: p.Tokens, N: units, K: p.Out, TransB: true, Activation: ofGradient, DType: p.DType, Out: p.DType},
			{M: p.Tokens, N: p.In, K: units, TransB: true, DType: p.DType, Out: p.DType}, // dx of one perceptron
		}
	}
	b.units = unitsOf(caps, p, o, func(units int) []engine.Problem { return products(units, units) })
	b.columns = b.units
	if p.Heads > 0 { // pre gets its zeros from the zeros of the copy of W1; dpre takes the place of pre, beside the zeros
		b.columns = hiddenStride(p)
	}
	of, pad := products(b.columns, b.units), b.units > p.Hidden
	for _, x := range []struct {
		to  *chain.Product
		on  bool
		p   engine.Problem
		opt engine.Options // Aligned: in our memory, or never copied, as Hidden
	}{
		{&b.pre, p.Keep == KeepNothing, of[0], engine.Options{AlignedB: p.Heads > 0, PadB: pad}},
		{&b.gradient, true, of[1], engine.Options{PadB: pad}},
		{&b.dw2, true, engine.Problem{Batch: b.n, M: p.Hidden, N: p.Out, K: p.Tokens, TransA: true, DType: p.DType, Out: p.GradDType()}, engine.Options{AlignedA: true}},
	} {
		if !x.on {
			continue
		}
		if *x.to, err = chain.NewProduct(caps, "mlp", memory, x.p, o.how(x.opt)); err != nil {
			return err
		}
		memory.Keep() // they run side by side, or copy operands early
	}
	return nil
}

// record records the parts one after the other.
func (plan *backwardPlan) record(c *vk.Cmd, memory *vk.Buffer, t Tensors, g Gradients, p Problem, o Options) error {
	for i := range plan.parts {
		part := &plan.parts[i]
		list, err := part.steps(c, memory, part.tensors(t, p), part.gradients(g, p), p, o)
		if err != nil {
			return err
		}
		if err := list.Record(c); err != nil {
			return err
		}
	}
	return nil
}

// steps returns the gradients of some heads, whose tensors are (heads, rows, columns): first the
// steps of dpre, beside copies of operands, then the other gradients side by side.
func (b *backwardPart) steps(c *vk.Cmd, memory *vk.Buffer, t Tensors, g Gradients, p Problem, o Options) (steps.List, error) {
	if b.skinny != nil {
		return b.skinnySteps(c, memory, t, g, p, o)
	}
	pre, err := b.preSteps(c, memory, t, p)
	if err != nil {
		return nil, err
	}
	rest, err := b.dpreSteps(c, memory, t, g, p)
	if err != nil {
		return nil, err
	}
	first := slices.Concat(steps.Together(pre.Copies, rest.gradient.Copies), pre.Product, rest.gradient.Product)
	if p.Keep == KeepHidden { // silu(pre) is there; the products with the longest k come first
		return steps.Together(
			slices.Concat(rest.dw2.Copies, rest.dw2.Product),
			slices.Concat(steps.Together(rest.more.Copies, first), rest.more.Product),
		), nil
	}
	// The operands that are copied are the caller's, so the copies can come first.
	return slices.Concat(
		steps.Together(rest.dw2.Copies, rest.more.Copies, first),
		steps.Together(rest.dw2.Product, rest.more.Product),
	), nil
}

// skinnySteps returns the same with one kernel for dpre and DW2. Its first step writes dpre, the
// others DW2.
func (b *backwardPart) skinnySteps(c *vk.Cmd, memory *vk.Buffer, t Tensors, g Gradients, p Problem, o Options) (steps.List, error) {
	dpre, w1 := b.hiddenUnits(memory, b.dpre, p.Hidden, p), b.weights(memory, p.Hidden, p)
	opt := o.how(engine.Options{AlignedB: true, Workspace: memory, WorkspaceOffset: b.sums})
	var first engine.Steps
	var err error
	if p.Keep == KeepPre {
		first, err = skinny.BackwardKept(c, skinny.Tensors{W: t.W2, Pre: t.Pre, DY: g.DY, DPre: dpre, DW: g.DW2}, b.skinny.problem, opt)
	} else {
		tensors := skinny.Tensors{A: b.repeat(t.X), B: w1, W: t.W2, DY: g.DY, DPre: dpre, DW: g.DW2}
		first, err = skinny.Backward(c, tensors, p.Out, b.skinny.problem, opt)
	}
	if err != nil {
		return nil, wrap(err)
	}
	rest, err := b.productSteps(c, memory, t, g, p)
	if err != nil {
		return nil, err
	}
	copies, ofDPre, sums := steps.Together(b.copyStep(memory, t.W1, p), first.Copies, rest.Copies), first.Product[:1], first.Product[1:]
	if p.Keep == KeepPre { // dpre needs none of the copies
		copies, ofDPre = steps.Together(copies, ofDPre), nil
	}
	return slices.Concat(copies, ofDPre, steps.Together(rest.Product, sums)), nil
}

// weights returns a number of columns of the copy of W1.
func (b *backwardPart) weights(memory *vk.Buffer, columns int, p Problem) vk.Tensor {
	return b.split(memory, b.w1, p.In, columns, p)
}

// copyStep returns the copy of W1 of heads.
func (b *backwardPart) copyStep(memory *vk.Buffer, w1 vk.Tensor, p Problem) steps.List {
	if p.Heads == 0 {
		return nil
	}
	to := b.weights(memory, p.Hidden, p).Narrow()
	return steps.List{func(c *vk.Cmd) error { return engine.Pad(c, to, w1) }}
}

// preSteps returns the steps that make the copy of W1 and pre, and with early silu(pre). If pre
// is kept, it returns the step that makes the zeros behind dpre.
func (b *backwardPart) preSteps(c *vk.Cmd, memory *vk.Buffer, t Tensors, p Problem) (s engine.Steps, err error) {
	copied := b.copyStep(memory, t.W1, p)
	if p.Keep > KeepNothing {
		return engine.Steps{Copies: steps.Together(copied, b.zeroStep(memory, t.Pre, p))}, nil
	}
	dst, keep, w1 := b.hiddenUnits(memory, b.dpre, b.columns, p), vk.Tensor{}, t.W1
	if b.early {
		dst, keep = b.hiddenUnits(memory, b.silu, b.columns, p), dst
	}
	if p.Heads > 0 {
		w1 = b.weights(memory, b.columns, p)
	}
	s, err = b.pre.Steps(c, memory, engine.Tensors{A: b.repeat(t.X), B: w1, C: dst, X: keep})
	s.Copies = steps.Together(copied, s.Copies)
	return s, err
}

// zeroStep returns the step that writes the zeros behind dpre of each head. The step copies the
// last columns of pre, since engine.Pad adds zeros to the columns that it copies; dpre overwrites
// these columns later. There is no step where a head has no zeros, or dx does not read them.
func (b *backwardPart) zeroStep(memory *vk.Buffer, pre vk.Tensor, p Problem) steps.List {
	last := p.Hidden % unit(p)
	if last == 0 || p.Heads == 0 {
		return nil
	}
	tail := func(t vk.Tensor) vk.Tensor {
		t.Shape, t.Offset = []int{b.n, p.Tokens, last}, t.Offset+p.Hidden-last
		return t.Narrow()
	}
	to, from := tail(b.hiddenUnits(memory, b.dpre, p.Hidden, p)), tail(pre)
	return steps.List{func(c *vk.Cmd) error { return engine.Pad(c, to, from) }}
}

// gradientSteps are the steps that follow from pre and dy: dpre, DW2, and more.
type gradientSteps struct{ gradient, dw2, more engine.Steps }

// dpreSteps returns the steps that follow from pre and dy. Dpre will lie where pre does, unless
// pre is kept.
func (b *backwardPart) dpreSteps(c *vk.Cmd, memory *vk.Buffer, t Tensors, g Gradients, p Problem) (s gradientSteps, err error) {
	dpre, pre, silu, late := b.hiddenUnits(memory, b.dpre, b.units, p), t.Pre, t.Hidden, vk.Tensor{}
	if pre.IsZero() {
		pre = dpre
	}
	if !silu.IsZero() {
		silu = silu.Slice(2, 0, p.Hidden)
	} else {
		silu = b.hiddenUnits(memory, b.silu, p.Hidden, p)
		if !b.early {
			late = b.hiddenUnits(memory, b.silu, b.units, p)
		}
	}
	if s.gradient, err = b.gradient.Steps(c, memory, engine.Tensors{A: g.DY, B: t.W2, C: dpre, X: pre, S: late}); err != nil {
		return s, err
	}
	if s.dw2, err = b.dw2.Steps(c, memory, engine.Tensors{A: silu, B: g.DY, C: g.DW2}); err != nil {
		return s, err
	}
	s.more, err = b.productSteps(c, memory, t, g, p)
	return s, err
}

// productSteps returns the products of dpre that are gradients, side by side.
func (b *backwardPart) productSteps(c *vk.Cmd, memory *vk.Buffer, t Tensors, g Gradients, p Problem) (s engine.Steps, err error) {
	ofW1, err := b.dw1.Steps(c, memory, engine.Tensors{A: b.repeat(t.X), B: b.hiddenUnits(memory, b.dpre, p.Hidden, p), C: g.DW1})
	if err != nil {
		return s, err
	}
	columns, w1 := b.units, matrix(t.W1)
	if p.Heads > 0 { // [dpre[0] 0 dpre[1] 0 …] * [W1[0] 0 W1[1] 0 …]ᵀ
		columns = b.n * hiddenStride(p)
		w1 = b.rows(memory, b.w1, p.In, columns, p)
	}
	ofX, err := b.dx.Steps(c, memory, engine.Tensors{A: b.rows(memory, b.dpre, p.Tokens, columns, p), B: w1, C: g.DX})
	s.Copies, s.Product = steps.Together(ofW1.Copies, ofX.Copies), steps.Together(ofW1.Product, ofX.Product)
	return s, err
}

// describe adds the kernels of b to a plan. The kernels of a loss follow y.
func (b *backwardPart) describe(plan *Plan, p Problem, loss ...string) {
	if p.Heads > 0 {
		plan.kernels = append(plan.kernels, "gemm_align") // the copy of W1
	}
	switch {
	case b.skinny != nil && p.Keep == KeepPre:
		plan.add("skinny dsilu", "gemm_skinny_dsilu", "gemm_combine")
	case b.skinny != nil:
		plan.skinny(kit.Backward, b.skinny.problem, b.skinny.plan.Config.String(), b.skinny.plan.Kernels("gemm_skinny_bwd"))
	default:
		if p.Keep == KeepNothing {
			plan.products(&b.pre)
		}
		if b.y != (chain.Product{}) {
			plan.products(&b.y)
			plan.kernels = append(plan.kernels, loss...)
		}
		plan.products(&b.gradient, &b.dw2)
	}
	plan.products(&b.dw1, &b.dx)
}
