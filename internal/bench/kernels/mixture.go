package kernels

import (
	"cmp"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk"
)

var _ = row(Kernel{Impls: implNames(), Backward: true, How: []string{"outputs"}, Tune: &Tune{}}, &calls[*call.Mixture]{
	name: "mixture",
	base: newMixture,
	file: func(s *Source, m *call.Mixture) error {
		if s.has("dloss") {
			m.DLoss = 1
		}
		return cmp.Or(s.into(m, "x", "dtype", "tokens", "in"), s.into(m, "w2", "", "heads", "hidden", "logit mu log_sigma"))
	},
	shrink: func(m *call.Mixture, _ [3]int) {
		tokens := m.Tokens
		m.Problem = newMixture(true).Problem
		m.Tokens = tokens / 200
	},
	derived: func(m *call.Mixture) map[string]any { return map[string]any{"grad_dtype": m.GradDType()} },
	sample:  func(m *call.Mixture) int { return sampleTokens(m.Perceptrons()) },
	tune: func(caps *vk.Caps, op calledOp[*call.Mixture], p bench.Pass) ([]bench.Tunable, error) {
		return partTunables(caps, op, p, 3)
	},
})

// newMixture returns a call of the training workload, or a small one for a CPU device.
func newMixture(cpu bool) *call.Mixture {
	p := mixture.Problem{Tokens: 16000, Heads: 10, In: 512, Hidden: 1365, DType: dtype.BFloat16}
	if cpu {
		p = mixture.Problem{Tokens: 128, Heads: 3, In: 32, Hidden: 85, DType: dtype.Float16}
	}
	return &call.Mixture{Problem: p, LogP: true, Loss: true}
}
