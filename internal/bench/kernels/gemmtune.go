package kernels

import (
	"errors"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// productTable is the file with the rows of products, which also hold for the kernels that share
// their tiles.
const productTable = "internal/pipelines/gemm/engine/tuning.go"

// gemmChoices returns the choices of a product. With --config only that is compared with the table's.
func gemmChoices(op tunedOp[*call.Gemm]) bench.Tunable {
	choices := productChoices(op, chain.Part{Kernel: "gemm", Problem: op.c.Problem})
	choices.Candidates = func(caps *vk.Caps, p engine.Problem, impl string) ([]engine.Config, error) {
		i, err := engine.ParseImpl(impl)
		if err != nil {
			return nil, err
		}
		list, err := engine.Candidates(caps, p, i)
		if c, e := engine.ParseConfig(op.c.Config); err == nil && e == nil {
			list = list[:1]
			if c.Splits = max(c.Splits, 1); c.Impl == i && c != list[0] {
				list = append(list, c)
			}
		}
		return list, err
	}
	choices.Variants = engine.Variants
	choices.Use = func(c engine.Config) bench.Op { return op.with(func(g *call.Gemm) { g.Config = c.String() }) }
	return choices.Tunable()
}

// productChoices returns what choices on tiles of products have in common.
func productChoices(op bench.Op, part chain.Part) *bench.Choices[engine.Problem, engine.Config] {
	p := part.Problem
	return &bench.Choices[engine.Problem, engine.Config]{
		Of: op, Kernel: part.Kernel, KernelPass: part.Pass, Problem: p,
		Space: table.Space[engine.Problem, engine.Config]{
			Path: func(c engine.Config) string { return c.Impl.String() },
			// The comment behind a row has what the row lacks: the problem, and the splits,
			// which Choose chooses itself.
			Source: func(caps *vk.Caps, p engine.Problem, c engine.Config, fill float64) string {
				return fmt.Sprintf("%s // %v: %v", engine.TableRow(caps, p, c, fill), p, c)
			},
			Fill: func(caps *vk.Caps, p engine.Problem, c engine.Config) float64 { return c.Fill(caps, p) },
		},
		// Float32 products on float16 matrices have rows of their own, for all transposes.
		Sort: func(c engine.Config) []int {
			if c.Impl == engine.CoopMat && p.DType == dtype.Float32 {
				return []int{int(c.Impl), 1, 0}
			}
			return []int{int(c.Impl), 0, slices.Index([]string{"tn", "tt", "nn", "nt"}, p.Transposes())}
		},
	}
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
			list = append(list, gemmChoices(tunedOp[*call.Gemm]{calledOp[*call.Gemm]{of: gemmCalls(), c: &call.Gemm{Problem: part.Problem}}}))
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
	choices := productChoices(op, part)
	choices.Side, choices.Source = pass, nil // the built-in rows are those of products
	choices.Candidates = func(caps *vk.Caps, _ engine.Problem, impl string) ([]engine.Config, error) {
		if impl != engine.CoopMat.String() {
			return nil, engine.Unsupported("%s: hidden units stay on the chip in kernels on matrices only", impl)
		}
		return skinny.Candidates(caps, p, choose)
	}
	choices.Variants = func(caps *vk.Caps, _ engine.Problem, c engine.Config) []engine.Config {
		return skinny.Variants(caps, p, c, choose)
	}
	choices.Use = func(c engine.Config) bench.Op {
		one := kit.NewTuning(caps)
		if one.Add(part.Kernel, part.Pass, part.Problem, c, 1) != nil {
			panic("kernels: a candidate is no row")
		}
		return op.Use(one)
	}
	return choices.Tunable()
}
