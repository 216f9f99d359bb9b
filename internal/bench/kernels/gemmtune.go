package kernels

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Use implements bench.Tuner.
func (o gemmOp) Use(*kit.Tuning) bench.Op { return o }

// Tunables implements bench.Tuner. With --config only that is compared with the table's choice.
func (o gemmOp) Tunables(*vk.Caps, bench.Pass) ([]bench.Tunable, error) {
	return []bench.Tunable{&bench.Choices[engine.Problem, engine.Config]{
		Of: o, Problem: o.p,
		PathOf: func(c engine.Config) string { return c.Impl.String() },
		List:   o.candidates,
		Vary:   func(caps *vk.Caps, c engine.Config) []engine.Config { return engine.Variants(caps, o.p, c) },
		Use: func(c engine.Config) bench.Op {
			o.config = &c
			return o
		},
		// Behind the row stand the problem, of which the table knows less, and splits that Choose
		// will not take.
		Source: func(caps *vk.Caps, c engine.Config, fill float64) string {
			return fmt.Sprintf("%s // %v: %v", engine.TableRow(caps, o.p, c, fill), o.p, c)
		},
		FillOf: func(caps *vk.Caps, c engine.Config) float64 { return c.Fill(caps, o.p) },
		// Parts of float32 operands have rows of their own, which are for all transposes.
		Sort: func(c engine.Config) []int {
			if c.Impl == engine.CoopMat && o.p.DType == dtype.Float32 {
				return []int{int(c.Impl), 1, 0}
			}
			return []int{int(c.Impl), 0, slices.Index([]string{"tn", "tt", "nn", "nt"}, o.p.Transposes())}
		},
	}}, nil
}

// candidates returns what is worth measuring of a path.
func (o gemmOp) candidates(caps *vk.Caps, impl string) ([]engine.Config, error) {
	i, err := engine.ParseImpl(impl)
	if err != nil {
		return nil, err
	}
	list, err := engine.Candidates(caps, o.p, i)
	if err == nil && o.config != nil {
		list = list[:1]
		c := *o.config
		c.Splits = max(c.Splits, 1)
		if c.Impl == i && c != list[0] {
			list = append(list, c)
		}
	}
	return list, err
}
