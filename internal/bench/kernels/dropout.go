package kernels

import (
	"github.com/flashvk/flashvk/internal/call"
)

var _ = row(Kernel{}, &calls[*call.Dropout]{
	name:   "dropout",
	file:   func(s *Source, d *call.Dropout) error { return s.into(d, "x", "dtype", "rows", "cols") },
	shrink: func(d *call.Dropout, _ [3]int) { d.Rows /= 100 },
})
