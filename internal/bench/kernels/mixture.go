package kernels

import (
	"cmp"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
)

var _ = row(Kernel{Impls: implNames(), Backward: true, How: []string{"outputs"}, Tune: &Tune{}}, mixtureCalls())

// mixtureCalls are the calls that commands make.
func mixtureCalls() *calls[*call.Mixture] {
	k := &calls[*call.Mixture]{
		name:  "mixture",
		start: func() *call.Mixture { return &call.Mixture{LogP: true, Loss: true} },
		file: func(s *Source, m *call.Mixture) error {
			if s.has("dloss") {
				m.DLoss = 1
			}
			return cmp.Or(s.into(m, "x", "dtype", "tokens", "in"), s.into(m, "w2", "", "heads", "hidden", "logit mu log_sigma"))
		},
		derived: func(m *call.Mixture) map[string]any { return map[string]any{"grad_dtype": m.GradDType()} },
		sample:  func(m *call.Mixture) int { return sampleTokens(m.Perceptrons()) },
		tune: func(caps *vk.Caps, op calledOp[*call.Mixture], p bench.Pass) ([]bench.Tunable, error) {
			return partTunables(caps, op, p, 3)
		},
	}
	k.shrink = func(m *call.Mixture, _ [3]int) {
		tokens := m.Tokens
		m.Problem = k.base(true).Problem
		m.Tokens = tokens / 200
	}
	return k
}
