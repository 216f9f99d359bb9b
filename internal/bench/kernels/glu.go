package kernels

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/glu"
)

var _ = row(Kernel{Backward: true}, &calls[*call.GLU]{
	name:   "glu",
	values: map[string]value{"activation": parsed(glu.ParseActivation, "NAME")},
	base: func(cpu bool) *call.GLU {
		if cpu {
			return &call.GLU{Problem: glu.Problem{Rows: 256, Cols: 512, DType: dtype.Float16}}
		}
		return &call.GLU{Problem: glu.Problem{Rows: 8192, Cols: 8192, DType: dtype.BFloat16}}
	},
	file: func(s *Source, g *call.GLU) error {
		if g.Beside = s.has("gu"); !g.Beside {
			return s.into(g, "g", "dtype", "rows", "cols")
		}
		err := s.into(g, "gu", "dtype", "rows", "cols")
		g.Cols /= 2
		return err
	},
	shrink: func(g *call.GLU, _ [3]int) { g.Rows /= 100 },
})
