package kernels

import (
	"github.com/flashvk/flashvk/internal/call"
)

var _ = row(Kernel{Backward: true}, &calls[*call.GMM]{
	name:  "gmm",
	start: func() *call.GMM { return &call.GMM{LogP: true, Loss: true, Interleaved: true} },
	file: func(s *Source, g *call.GMM) error {
		if g.Interleaved = s.has("p"); s.has("dloss") {
			g.DLoss = 1
		}
		if !g.Interleaved {
			return s.into(g, "logit", "dtype", "tokens", "components")
		}
		return s.into(g, "p", "dtype", "tokens", "components", "logit mu log_sigma")
	},
	shrink: func(g *call.GMM, _ [3]int) { g.Tokens /= 10 },
})
