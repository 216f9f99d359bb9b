package kernels

import (
	"cmp"

	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/pipelines/normlinear"
)

var _ = row(Kernel{Tune: &Tune{}}, &calls[*call.NormLinear]{
	name: "normlinear",
	values: map[string]value{
		"config":     parsed(pointer(normlinear.ParseConfig), "CONFIG"),
		"activation": parsed(glu.ParseActivation, "NAME"),
	},
	file: func(s *Source, n *call.NormLinear) error {
		n.Residual, n.Bias = s.has("residual"), s.has("bias")
		err := cmp.Or(s.into(n, "x", "dtype", "rows", "in"), s.into(n, "w", "dtype", "out", "in"))
		if n.GLU {
			n.Out /= 2
		}
		return err
	},
	shrink: func(n *call.NormLinear, _ [3]int) { n.Out = max(1, n.Out/64) },
})
