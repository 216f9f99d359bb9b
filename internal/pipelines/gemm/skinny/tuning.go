package skinny

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// The tables of the kernels, under the names of the program.
var (
	forwardTable  = engine.NewTable("grouped", kit.Forward, "gemm_narrow", "gemm_narrow_fragmented", "gemm_fragments", "gemm_combine")
	backwardTable = engine.NewTable("grouped", kit.Backward, "gemm_narrow_bwd", "gemm_combine")
	mixtureTable  = engine.NewTable("mixture", kit.Forward, "gemm_mixture", "gmm_merge")
)

// Candidates returns configurations that are worth measuring for the kernel of a table, all
// feasible: the kernel's own choice, then the tiles of products that fit. Choose is the kernel's.
func Candidates(caps *vk.Caps, p engine.Problem, choose func(o engine.Options) (engine.Config, error)) ([]engine.Config, error) {
	start, err := choose(engine.Options{})
	if err != nil {
		return nil, err
	}
	list, err := engine.Candidates(caps, p, engine.CoopMat)
	if err != nil {
		return nil, fmt.Errorf("skinny: %w", err)
	}
	return fitting(start, list, choose), nil
}

// Variants returns the variants of c that fit.
func Variants(caps *vk.Caps, p engine.Problem, c engine.Config, choose func(o engine.Options) (engine.Config, error)) []engine.Config {
	return fitting(c, engine.Variants(caps, p, c), choose)[1:]
}

// fitting returns first, and those of a list, without splits, that the kernel can take.
func fitting(first engine.Config, list []engine.Config, choose func(o engine.Options) (engine.Config, error)) []engine.Config {
	all := []engine.Config{first}
	for _, c := range list {
		c.Splits, c.Rows = 1, 0
		if slices.Contains(all, c) {
			continue
		}
		if got, err := choose(engine.Options{Config: &c}); err == nil && got == c {
			all = append(all, c)
		}
	}
	return all
}
