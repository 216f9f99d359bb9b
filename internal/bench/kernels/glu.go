package kernels

import (
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/glu"
)

var _ = row(Kernel{Backward: true}, &calls[*call.GLU]{
	name:   "glu",
	values: map[string]value{"activation": parsed(glu.ParseActivation, "NAME")},
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
