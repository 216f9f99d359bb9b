package kernels

import (
	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/quantize"
)

var _ = row(Kernel{}, &calls[*call.Quantize]{
	name:   "quantize",
	values: map[string]value{"quant": named("FORMAT", dtype.Quants()...)},
	base: func(cpu bool) *call.Quantize {
		p := quantize.Problem{Batch: 1, Heads: 1, Rows: 8192, Cols: 4096, DType: dtype.BFloat16, Quant: dtype.QuantInt8, Block: 1}
		if cpu {
			p.Rows, p.DType = 256, dtype.Float16
		}
		return &call.Quantize{Problem: p}
	},
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
