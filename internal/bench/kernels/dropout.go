package kernels

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/dropout"
)

var _ = row(Kernel{}, &calls[*call.Dropout]{
	name: "dropout",
	base: func(cpu bool) *call.Dropout {
		p := dropout.Problem{Rows: 8192, Cols: 8192, P: 0.05, DType: dtype.BFloat16}
		if cpu {
			p.Rows, p.Cols, p.DType = 256, 512, dtype.Float16
		}
		return &call.Dropout{Problem: p}
	},
	file:   func(s *Source, d *call.Dropout) error { return s.into(d, "x", "dtype", "rows", "cols") },
	shrink: func(d *call.Dropout, _ [3]int) { d.Rows /= 100 },
})
