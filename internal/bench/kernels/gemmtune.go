package kernels

import (
	"errors"
	"slices"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// gemmChoices returns the choices of a product.
func gemmChoices(op calledOp[*call.Gemm]) []bench.Tunable {
	if c, err := engine.ParseConfig(op.c.Config); err == nil {
		c.Splits = max(c.Splits, 1)
		return op.choices(bench.Forward, op.c.Problem, c)
	}
	return op.choices(bench.Forward, op.c.Problem, nil)
}

// partTunables returns the choices of the parts of a pass, each once. Products are measured alone.
// Kernels of package skinny are measured as a part of op, where W2 has this number of columns for
// each head.
func partTunables(caps *vk.Caps, op bench.Tuner, pass bench.Pass, columns int) (list []bench.Tunable, err error) {
	if caps == nil {
		return nil, nil
	}
	plan, err := op.Choose(caps, engine.CoopMat.String(), pass)
	if errors.Is(err, vk.ErrUnsupported) {
		plan, err = op.Choose(caps, engine.Scalar.String(), pass)
	}
	if err != nil {
		return nil, err
	}
	parts := plan.(interface{ Parts() []chain.Part }).Parts()
	for i, part := range parts {
		if slices.Contains(parts[:i], part) {
			continue
		}
		if part.Kernel == "gemm" {
			list = append(list, gemmChoices(calledOp[*call.Gemm]{of: gemmCalls(), c: &call.Gemm{Problem: part.Problem}})...)
			continue
		}
		list = append(list, skinnyChoices(caps, op, pass, part, columns))
	}
	return list, nil
}

// skinnyChoices returns the choices of a kernel of package skinny in a pass of op.
func skinnyChoices(caps *vk.Caps, op bench.Tuner, pass bench.Pass, part chain.Part, columns int) bench.Tunable {
	p := part.Problem
	choose := func(o engine.Options) (c engine.Config, err error) {
		var plan skinny.Plan
		switch {
		case part.Kernel == "mixture":
			plan, err := skinny.ChooseMixture(caps, p, o)
			return plan.Config, err
		case part.Pass == kit.Backward:
			o.AlignedB = true
			plan, err = skinny.ChooseBackward(caps, p, columns, o)
		default:
			plan, err = skinny.ChooseForward(caps, p, columns, o)
		}
		return plan.Config, err
	}
	if part.Kernel == "mixture" {
		part.Problem.N = 1 // a workgroup has all columns, and the table is asked about one
	}
	x := bench.Tunable{Op: op, Pass: pass, Space: *table.SpaceOf(part.Kernel, part.Pass, part.Problem), With: func(c bench.Candidate) bench.Op {
		one := kit.NewTuning(caps)
		if one.Add(part.Kernel, part.Pass, part.Problem, c, 1) != nil {
			panic("kernels: a candidate is no row")
		}
		return op.Use(one)
	}}
	x.Candidates = func(caps *vk.Caps, impl string) ([]bench.Candidate, error) {
		if impl != engine.CoopMat.String() {
			return nil, engine.Unsupported("%s: hidden units stay on the chip in kernels on matrices only", impl)
		}
		list, err := skinny.Candidates(caps, p, choose)
		return asCandidates(list), err
	}
	x.Variants = func(caps *vk.Caps, c bench.Candidate) []bench.Candidate {
		return asCandidates(skinny.Variants(caps, p, c.(engine.Config), choose))
	}
	return x
}

func asCandidates(list []engine.Config) (all []bench.Candidate) {
	for _, c := range list {
		all = append(all, c)
	}
	return all
}
