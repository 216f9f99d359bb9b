package kernels

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/vk"
)

// Candidates implements bench.TunableOp. With --config only that is compared with the table's
// choice.
func (o gemmOp) Candidates(caps *vk.Caps, impl string) ([]bench.Candidate, error) {
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
	return bench.Candidates(list), err
}

// Variants implements bench.TunableOp.
func (o gemmOp) Variants(caps *vk.Caps, c bench.Candidate) []bench.Candidate {
	return bench.Candidates(engine.Variants(caps, o.p, c.(engine.Config)))
}

// With implements bench.TunableOp.
func (o gemmOp) With(c bench.Candidate) bench.Op {
	config := c.(engine.Config)
	o.config = &config
	return o
}

// Row implements bench.TunableOp. Behind the row stand the problem, of which the table knows
// less, and splits that Choose will not take.
func (o gemmOp) Row(caps *vk.Caps, c bench.Candidate, fill float64) string {
	config := c.(engine.Config)
	return fmt.Sprintf("%s // %v: %v", engine.TableRow(caps, o.p, config, fill), o.p, config)
}

// Fill implements bench.TunableOp.
func (o gemmOp) Fill(caps *vk.Caps, c bench.Candidate) float64 {
	return c.(engine.Config).Fill(caps, o.p)
}

// Order implements bench.TunableOp. Parts of float32 operands have rows of their own, which
// are for all transposes.
func (o gemmOp) Order(c bench.Candidate) []int {
	impl := c.(engine.Config).Impl
	if impl == engine.CoopMat && o.p.DType == dtype.Float32 {
		return []int{int(impl), 1, 0}
	}
	return []int{int(impl), 0, slices.Index([]string{"tn", "tt", "nn", "nt"}, o.p.Transposes())}
}
