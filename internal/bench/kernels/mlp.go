package kernels

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
)

// fusedImpl is the path of mlp that is one kernel. The other paths are paths of the matrix
// products; auto takes the fastest.
const fusedImpl = "fused"

var (
	_ = row(Kernel{
		Impls: slices.Insert(implNames(), 1, fusedImpl), Backward: true, How: []string{"keep"}, Tune: &Tune{Impls: implNames()[1:]},
	}, perceptronCalls(false))
	_ = row(Kernel{Impls: implNames(), Backward: true, How: []string{"products", "keep"}, Tune: &Tune{}}, perceptronCalls(true))
)

// perceptronCalls are the calls of commands mlp and grouped. The suites have the tokens of the
// training shapes, and the heads of that workload.
func perceptronCalls(grouped bool) *calls[*call.MLP] {
	k := &calls[*call.MLP]{
		name: "mlp", path: mlpPath, values: map[string]value{"keep": named("WHAT", mlp.Keeps()...)},
		derived: func(m *call.MLP) map[string]any { return map[string]any{"grad_dtype": m.GradDType()} },
		sample:  func(m *call.MLP) int { return sampleTokens(m.Problem) },
		file: func(s *Source, m *call.MLP) error {
			return cmp.Or(s.into(m, "x", "dtype", "tokens", "in"), s.into(m, "w2", "", "hidden", "out"))
		},
		tune: func(caps *vk.Caps, op calledOp[*call.MLP], p bench.Pass) ([]bench.Tunable, error) {
			return partTunables(caps, op, p, op.c.Out)
		},
	}
	k.shrink = func(m *call.MLP, _ [3]int) {
		tokens := m.Tokens
		m.Problem = k.base(true).Problem
		m.Tokens = tokens / 200
	}
	if grouped {
		k.name, k.values = "grouped", map[string]value{"keep": named("WHAT", mlp.Keeps()[:2]...)}
		k.check = func(m *call.MLP, _ *pflag.FlagSet) error {
			if m.Heads < 1 {
				return fmt.Errorf("grouped: heads=%d is not positive", m.Heads)
			}
			return nil
		}
		k.file = func(s *Source, m *call.MLP) error {
			return cmp.Or(s.into(m, "x", "dtype", "tokens", "in"), s.into(m, "w2", "", "heads", "hidden", "out"))
		}
	}
	return k
}

// sampleTokens returns the tokens whose products are some tenths of a second of float64.
func sampleTokens(p mlp.Problem) int {
	const most = 1 << 28 // multiplications of a product
	return max(4, most/(max(p.Heads, 1)*p.Hidden*max(p.In, p.Out)))
}

// mlpPath sets the fields of a path.
func mlpPath(m *call.MLP, impl string, p bench.Pass) error {
	switch {
	case impl == fusedImpl && p == bench.Backward:
		return fmt.Errorf("mlp: path fused: the backward pass has no such kernel: %w", vk.ErrUnsupported)
	case impl == fusedImpl:
		m.Fused = mlp.FusedOn
		return nil
	case m.FusedConfig != "":
		return fmt.Errorf("mlp: path %s: --config is of path %s: %w", impl, fusedImpl, vk.ErrUnsupported)
	case impl != gemm.Auto.String():
		m.Fused = mlp.FusedOff
	}
	m.Impl = impl
	return nil
}
