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
	plan.units = hiddenStride(p)
	first := gemm.Problem{M: p.Tokens, N: plan.units, K: p.In, Activation: gemm.SiLU, DType: p.DType, Out: p.DType}
	second := gemm.Problem{M: p.Tokens, N: p.Out, K: plan.units, DType: p.DType, Out: p.DType}
	pad := keep == KeepNothing && plan.units > p.Hidden && inFragments(caps, opt, first, second)
	if !pad {
		plan.units, first.N, second.K = p.Hidden, p.Hidden, p.Hidden
	}
	if keep >= KeepPre {
		first.Activation = gemm.SiLUKeep
	}
	if plan.first, err = chain.NewProduct(caps, "mlp", &plan.memory, first, opt.Impl, gemm.Options{PadB: pad}); err != nil {
		return plan, err
	}
	plan.memory.Keep() // operands of both are copied first
	plan.second, err = chain.NewProduct(caps, "mlp", &plan.memory, second, opt.Impl, gemm.Options{AlignedA: true, PadB: pad})
	return plan, err
}

// inFragments reports whether the kernels of all products can take what W1 and W2 have less of
// than a product's hidden units for zeros. Rows of hidden units can then end where lines of memory
// do, and no kernel has an edge there: 115.5 instead of 120 µs (11000 tokens, 1365 units, H200).
func inFragments(caps *vk.Caps, opt *Options, products ...gemm.Problem) bool {
	for _, p := range products {
		config, err := gemm.Choose(caps, p, gemm.Options{Impl: opt.Impl})
		if err != nil || !config.Fragments {
			return false
		}
	}
	return true
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
	plan.units = hiddenStride(p)
	pre := gemm.Problem{M: p.Tokens, N: plan.units, K: p.In, DType: p.DType, Out: p.DType}
	gradient := gemm.Problem{M: p.Tokens, N: plan.units, K: p.Out, TransB: true, Activation: ofGradient, DType: p.DType, Out: p.DType}
	dx := gemm.Problem{M: p.Tokens, N: p.In, K: plan.units, TransB: true, DType: p.DType, Out: p.DType}
	pad := keep == KeepNothing && plan.units > p.Hidden && inFragments(caps, opt, pre, gradient, dx)
	if !pad {
		plan.units, pre.N, gradient.N, dx.K = p.Hidden, p.Hidden, p.Hidden, p.Hidden
	}
	for _, x := range []struct {
		to     *chain.Product
		on     bool
		p      gemm.Problem
		a, b   bool // the operands that are in our memory, or never copied, as Options.Hidden
		padded bool
	}{
		{&plan.pre, keep == KeepNothing, pre, false, false, pad},
		{&plan.gradient, true, gradient, false, false, pad},
		{&plan.dw2, true, gemm.Problem{M: p.Hidden, N: p.Out, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}, true, false, false},
		{&plan.dw1, true, gemm.Problem{M: p.In, N: p.Hidden, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}, false, true, false},
		{&plan.dx, true, dx, true, false, pad},
	} {
		if !x.on {
			continue
		}
		if *x.to, err = chain.NewProduct(caps, "mlp", &plan.memory, x.p, opt.Impl, gemm.Options{AlignedA: x.a, AlignedB: x.b, PadB: x.padded}); err != nil {
			return plan, err
		}
		plan.memory.Keep() // they run side by side, or copy operands early
	}
	return plan, nil
}
