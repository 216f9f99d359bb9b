package kernels

import (
	"github.com/flashvk/flashvk/internal/call"
)

var _ = row(Kernel{Impls: implNames(), Backward: true}, &calls[*call.Xent]{
	name:  "xent",
	start: func() *call.Xent { return &call.Xent{Losses: true, LSE: true, Loss: true} },
	file: func(s *Source, x *call.Xent) error {
		if s.has("dloss") {
			x.DLoss = 1
		}
		if s.has("logits") {
			x.Dim = 0
			return s.into(x, "logits", "dtype", "tokens", "vocabulary")
		}
		if err := s.into(x, "h", "dtype", "tokens", "dim"); err != nil {
			return err
		}
		return s.into(x, "w", "dtype", "vocabulary", "dim")
	},
	shrink: func(x *call.Xent, _ [3]int) {
		x.Tokens, x.Vocabulary, x.Dim = x.Tokens/100, x.Vocabulary/100, x.Dim/10
	},
	sample:  func(x *call.Xent) int { return max(4, 1<<28/(x.Vocabulary*max(x.Dim, 16))) },
	derived: func(x *call.Xent) map[string]any { return map[string]any{"grad_dtype": x.GradDType()} },
})
