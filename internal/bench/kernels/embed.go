package kernels

import (
	"cmp"

	"github.com/flashvk/flashvk/internal/call"
)

var _ = row(Kernel{Backward: true}, &calls[*call.Embed]{
	name: "embed",
	file: func(s *Source, e *call.Embed) error {
		ids, err := s.shape("ids", "tokens")
		if err == nil {
			e.Tokens = ids.Shape[0]
		}
		return cmp.Or(err, s.into(e, "table", "dtype", "vocabulary", "dim"))
	},
	shrink: func(e *call.Embed, _ [3]int) {
		e.Tokens, e.Vocabulary, e.Dim = e.Tokens/100, e.Vocabulary/100, e.Dim/10
	},
	sample: func(e *call.Embed) int { return max(4, 1<<22/e.Dim) },
	derived: func(e *call.Embed) map[string]any {
		return map[string]any{"out_dtype": e.OutDType(), "grad_dtype": e.GradDType()}
	},
})
