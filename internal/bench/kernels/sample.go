package kernels

import (
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/sample"
)

var _ = row(Kernel{}, &calls[*call.Sample]{
	name: "sample",
	base: func(cpu bool) *call.Sample {
		p := sample.Problem{Rows: 16, Vocabulary: 151936}
		if cpu {
			p.Vocabulary = 8192
		}
		return &call.Sample{Problem: p}
	},
	file:   func(s *Source, x *call.Sample) error { return s.into(x, "logits", "dtype", "rows", "vocabulary") },
	shrink: func(x *call.Sample, _ [3]int) { x.Vocabulary = max(1, x.Vocabulary/16) },
	sample: func(x *call.Sample) int { return max(1, 1<<22/x.Vocabulary) },
})
