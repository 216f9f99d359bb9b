package mlp

import (
	"cmp"

	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/vk"
)

// A forwardPlan is what Forward runs: one kernel, or two products.
type forwardPlan struct {
	memory        chain.Memory
	fused         *pair
	hidden        int64 // where silu(pre) lies
	units         int   // of it: more than p.Hidden if W1 and W2 are extended by zeros
	first, second chain.Product
}

func newForwardPlan(caps *vk.Caps, p Problem, opt *Options, keep Keep) (plan forwardPlan, err error) {
	if err := cmp.Or(p.Validate(), keep.Check("mlp", Keeps())); err != nil {
		return plan, err
	}
	if plan.fused, err = newPair(caps, p, opt, keep); err != nil {
		return plan, err
	}
	if plan.fused != nil {
		bytes, err := gemm.PairWorkspace(caps, plan.fused.p, plan.fused.opt)
		plan.memory.Take(bytes)
		return plan, err
	}
	if keep < KeepHidden {
		plan.hidden = plan.memory.Take(hiddenBytes(p))
	}
	activation := gemm.SiLU
	if keep >= KeepPre {
		activation = gemm.SiLUKeep
	}
	products := func(units int) []gemm.Problem {
		return []gemm.Problem{
			{M: p.Tokens, N: units, K: p.In, Activation: activation, DType: p.DType, Out: p.DType},
			{M: p.Tokens, N: p.Out, K: units, DType: p.DType, Out: p.DType},
		}
	}
	plan.units = unitsOf(caps, p, opt, keep, products)
	both, pad := products(plan.units), plan.units > p.Hidden
	if plan.first, err = chain.NewProduct(caps, "mlp", &plan.memory, both[0], opt.Impl, gemm.Options{PadB: pad}); err != nil {
		return plan, err
	}
	plan.memory.Keep() // operands of both are copied first
	plan.second, err = chain.NewProduct(caps, "mlp", &plan.memory, both[1], opt.Impl, gemm.Options{AlignedA: true, PadB: pad})
	return plan, err
}

// unitsOf returns the hidden units of the products that have W1 or W2 as op(B), of which products
// makes the problems: up to whole lines of memory, W1 and W2 being zero there, if hidden units are
// in our memory alone and the kernels of all can take a part of op(B) for the whole. No kernel has
// an edge then: 115.5 instead of 120 µs (forward, 11000 tokens, 1365 units, H200).
func unitsOf(caps *vk.Caps, p Problem, opt *Options, keep Keep, products func(units int) []gemm.Problem) int {
	units := hiddenStride(p)
	if keep > KeepNothing || units == p.Hidden {
		return p.Hidden
	}
	for _, x := range products(units) {
		config, err := gemm.Choose(caps, x, gemm.Options{Impl: opt.Impl})
		if err != nil || !config.Fragments {
			return p.Hidden
		}
	}
	return units
}

// A backwardPlan is what Backward runs.
type backwardPlan struct {
	memory                      chain.Memory
	hidden, dpre                int64 // where silu(pre), before it pre, unless they are kept, and dpre lie
	units                       int   // of both: more than p.Hidden if W1 and W2 are extended by zeros
	pre, gradient, dw2, dw1, dx chain.Product
}

func newBackwardPlan(caps *vk.Caps, p Problem, opt *Options, keep Keep) (plan backwardPlan, err error) {
	if err := cmp.Or(p.Validate(), keep.Check("mlp", Keeps())); err != nil {
		return plan, err
	}
	ofGradient := gemm.TimesDSiLU
	if keep < KeepHidden {
		plan.hidden, ofGradient = plan.memory.Take(hiddenBytes(p)), gemm.TimesDSiLUKeep
	}
	plan.dpre = plan.memory.Take(hiddenBytes(p))
	products := func(units int) []gemm.Problem {
		return []gemm.Problem{
			{M: p.Tokens, N: units, K: p.In, DType: p.DType, Out: p.DType},
			{M: p.Tokens, N: units, K: p.Out, TransB: true, Activation: ofGradient, DType: p.DType, Out: p.DType},
			{M: p.Tokens, N: p.In, K: units, TransB: true, DType: p.DType, Out: p.DType},
		}
	}
	plan.units = unitsOf(caps, p, opt, keep, products)
	of, pad := products(plan.units), plan.units > p.Hidden
	for _, x := range []struct {
		to  *chain.Product
		on  bool
		p   gemm.Problem
		opt gemm.Options // Aligned: in our memory, or never copied, as Options.Hidden
	}{
		{&plan.pre, keep == KeepNothing, of[0], gemm.Options{PadB: pad}},
		{&plan.gradient, true, of[1], gemm.Options{PadB: pad}},
		{&plan.dw2, true, gemm.Problem{M: p.Hidden, N: p.Out, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}, gemm.Options{AlignedA: true}},
		{&plan.dw1, true, gemm.Problem{M: p.In, N: p.Hidden, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}, gemm.Options{AlignedB: true}},
		{&plan.dx, true, of[2], gemm.Options{AlignedA: true, PadB: pad}},
	} {
		if !x.on {
			continue
		}
		if *x.to, err = chain.NewProduct(caps, "mlp", &plan.memory, x.p, opt.Impl, x.opt); err != nil {
			return plan, err
		}
		plan.memory.Keep() // they run side by side, or copy operands early
	}
	return plan, nil
}
