package kernels

import (
	"github.com/flashvk/flashvk/internal/call"
)

var _ = row(Kernel{}, &calls[*call.Sample]{
	name:   "sample",
	file:   func(s *Source, x *call.Sample) error { return s.into(x, "logits", "dtype", "rows", "vocabulary") },
	shrink: func(x *call.Sample, _ [3]int) { x.Vocabulary = max(1, x.Vocabulary/16) },
	sample: func(x *call.Sample) int { return max(1, 1<<22/x.Vocabulary) },
})
