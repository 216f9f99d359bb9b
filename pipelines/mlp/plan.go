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
	first := gemm.Problem{M: p.Tokens, N: p.Hidden, K: p.In, Activation: gemm.SiLU, DType: p.DType, Out: p.DType}
	second := gemm.Problem{M: p.Tokens, N: p.Out, K: p.Hidden, DType: p.DType, Out: p.DType}
	plan.units = p.Hidden
	switch {
	case keep >= KeepPre:
		first.Activation = gemm.SiLUKeep
	case padded(caps, opt, &first, &second, hiddenStride(p)):
		plan.units = hiddenStride(p)
	}
	pad := plan.units > p.Hidden
	if plan.first, err = chain.NewProduct(caps, "mlp", &plan.memory, first, opt.Impl, gemm.Options{PadB: pad}); err != nil {
		return plan, err
	}
	plan.memory.Keep() // operands of both are copied first
	plan.second, err = chain.NewProduct(caps, "mlp", &plan.memory, second, opt.Impl, gemm.Options{AlignedA: true, PadB: pad})
	return plan, err
}

// padded makes the hidden units of both products n, if their kernels can take what W1 and W2
// have less of for zeros: rows of hidden units then end where lines of memory do, and neither
// kernel has an edge there. It takes 115.5 instead of 120 µs (11000 tokens, 1365 units, H200).
func padded(caps *vk.Caps, opt *Options, first, second *gemm.Problem, n int) bool {
	of := [2]gemm.Problem{*first, *second}
	of[0].N, of[1].K = n, n
	for _, p := range of {
		config, err := gemm.Choose(caps, p, gemm.Options{Impl: opt.Impl})
		if err != nil || !config.Fragments {
			return false
		}
	}
	*first, *second = of[0], of[1]
	return true
}

// A backwardPlan is what Backward runs.
type backwardPlan struct {
	memory                      chain.Memory
	hidden, dpre                int64 // where silu(pre), before it pre, unless they are kept, and dpre lie
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
	for _, x := range []struct {
		to   *chain.Product
		on   bool
		p    gemm.Problem
		a, b bool // the operands that are in our memory, or never copied, as Options.Hidden
	}{
		{&plan.pre, keep == KeepNothing, gemm.Problem{M: p.Tokens, N: p.Hidden, K: p.In, DType: p.DType, Out: p.DType}, false, false},
		{&plan.gradient, true, gemm.Problem{M: p.Tokens, N: p.Hidden, K: p.Out, TransB: true, Activation: ofGradient, DType: p.DType, Out: p.DType}, false, false},
		{&plan.dw2, true, gemm.Problem{M: p.Hidden, N: p.Out, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}, true, false},
		{&plan.dw1, true, gemm.Problem{M: p.In, N: p.Hidden, K: p.Tokens, TransA: true, DType: p.DType, Out: p.Grad}, false, true},
		{&plan.dx, true, gemm.Problem{M: p.Tokens, N: p.In, K: p.Hidden, TransB: true, DType: p.DType, Out: p.DType}, true, false},
	} {
		if !x.on {
			continue
		}
		if *x.to, err = chain.NewProduct(caps, "mlp", &plan.memory, x.p, opt.Impl, gemm.Options{AlignedA: x.a, AlignedB: x.b}); err != nil {
			return plan, err
		}
		plan.memory.Keep() // they run side by side, or copy operands early
	}
	return plan, nil
}
