package kernels

import (
	"cmp"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/norm"
)

var _ = row(Kernel{Backward: true, Tune: &Tune{}}, &calls[*call.Norm]{
	name:   "norm",
	values: map[string]value{"config": parsed(pointer(norm.ParseConfig), "CONFIG")},
	start:  func() *call.Norm { return &call.Norm{Save: true, DResidual: true} },
	file: func(s *Source, n *call.Norm) error {
		n.Residual, n.Bias = s.has("residual"), s.has("b")
		return cmp.Or(s.into(n, "x", "dtype", "rows", "cols"), s.into(n, "w", "weight_dtype", "cols"))
	},
	shrink: func(n *call.Norm, _ [3]int) { n.Rows /= 100 },
	derived: func(n *call.Norm) map[string]any {
		return map[string]any{"kind": map[bool]string{false: "LayerNorm", true: "RMSNorm"}[n.RMS]}
	},
})
