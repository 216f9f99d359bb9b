package kernels

import (
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
)

var _ = row(Kernel{}, &calls[*call.Quantize]{
	name:   "quantize",
	values: map[string]value{"quant": named("FORMAT", dtype.Quants()...)},
	check: func(q *call.Quantize, f *pflag.FlagSet) error {
		if (q.Whole || q.Quant.Block() > 0) && !f.Changed("block") {
			q.Block = 0
		}
		return nil
	},
	file: func(s *Source, q *call.Quantize) error {
		return s.into(q, "x", "dtype", "batch", "heads", "rows", "cols")
	},
	shrink: func(q *call.Quantize, _ [3]int) { q.Rows /= 100 },
	sample: func(*call.Quantize) int { return 1024 },
})
