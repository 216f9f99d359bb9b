package kernels

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
)

// fusedImpl is the path of mlp that is one kernel. The other paths are paths of the matrix
// products; auto takes the fastest.
const fusedImpl = "fused"

// perceptron is the row of mlp.
func perceptron() Kernel {
	return Kernel{
		Name: "mlp", Title: "a two-layer perceptron with SiLU", Impls: slices.Insert(implNames(), 1, fusedImpl),
		New: perceptronCalls(false).New, Backward: true, How: []string{"keep"},
		Formulas: `
    pre  = x * w1
    y    = silu(pre) * w2                      silu(v) = v / (1 + exp(-v))
    dpre = (dy * w2ᵀ) ∘ silu'(pre)
    dx   = dpre * w1ᵀ,   dw1 = xᵀ * dpre,   dw2 = silu(pre)ᵀ * dy`,
		About: perceptronRates + `
PyTorch writes pre and hidden, which is silu(pre). Path fused is the forward pass as one
kernel.`,
		Files: `
    x (tokens, in), F16, BF16 or F32; w1 (in, hidden), w2 (hidden, out), as x
    written: y (tokens, out), as x; with --keep also pre (tokens, hidden), and hidden, silu(pre)
` + perceptronGradients,
		Examples: []string{
			"bench --tokens 11000 --in 512 --hidden 1365 --out 512 --dtype bfloat16 --backward",
			`bench --tokens 11000 --impl fused --config "pair s8 t4x4 h2x1 x16 ahead8 double"`,
			`bench --suite training --backward --keep hidden --peer torch="python3 tools/peers/torch_train.py"`,
			"run --in x.safetensors --out y.safetensors --backward --grad-dtype float32",
			"sweep --tokens 1024..65536x4 --dtype float16,bfloat16 --csv mlp.csv",
			"tune --tokens 11000 --keep pre --backward --impl coopmat",
		},
		Tune: &Tune{
			About: tunesProducts + ` Path fused is not
tuned; bench mlp --config forces its tile sizes.`,
			Impls: implNames()[1:],
		},
	}
}

const perceptronRates = `Rates count the products of the formulas, 2 forward and 4 backward. The backward pass
computes pre again, which is not counted, unless --keep makes the forward pass write it.`

const perceptronGradients = `and with --backward
    dy as y: the gradient of a loss by it
    written: dx as x; dw1, dw2 as w1, w2, in the format of --grad-dtype`

// perceptrons is the row of grouped.
func perceptrons() Kernel {
	return Kernel{
		Name: "grouped", Title: "perceptron heads with SiLU that share their input", Impls: implNames(),
		New: perceptronCalls(true).New, Backward: true, How: []string{"products", "keep"},
		Formulas: `
    pre[k]  = x * w1[k]
    y[:,k]  = silu(pre[k]) * w2[k]             silu(v) = v / (1 + exp(-v))
    dpre[k] = (dy[:,k] * w2[k]ᵀ) ∘ silu'(pre[k])
    dx      = sum over k of dpre[k] * w1[k]ᵀ
    dw1[k]  = xᵀ * dpre[k],   dw2[k] = silu(pre[k])ᵀ * dy[:,k]`,
		About: perceptronRates,
		Files: `
    x (tokens, in), F16, BF16 or F32; w1 (heads, in, hidden), w2 (heads, hidden, out), as x
    written: y (tokens, heads, out), as x; with --keep pre also pre (tokens, heads, hidden)
` + perceptronGradients,
		Examples: []string{
			"bench --tokens 16000 --heads 10 --in 512 --hidden 1365 --out 3 --dtype bfloat16 --backward",
			`bench --suite training --backward --products --peer torch="python3 tools/peers/torch_train.py"`,
			"run --in x.safetensors --out y.safetensors --backward --grad-dtype float32",
			"sweep --heads 1..16x2 --csv grouped.csv",
			"tune --tokens 16000 --heads 10 --out 3 --dtype bfloat16 --backward --impl coopmat",
		},
		Tune: &Tune{
			About: "It tries kernels that keep hidden units on the chip, and products. " + tunesProducts,
			Impls: implNames()[1:],
		},
	}
}

// perceptronCalls are the calls of commands mlp and grouped. The suites have the tokens of the
// training shapes, and the heads of that workload.
func perceptronCalls(grouped bool) *calls[*call.MLP] {
	k := &calls[*call.MLP]{
		name: "mlp", keys: "dtype grad_dtype tokens in hidden out keep", path: mlpPath,
		derived: func(m *call.MLP) map[string]any { return map[string]any{"grad_dtype": m.GradDType()} },
		sample:  func(m *call.MLP) int { return sampleTokens(m.Problem) },
		flags: []flag{
			{name: "grad-dtype", field: "Grad", usage: "format of dw1 and dw2: float16, bfloat16 or float32 (default: the format of x)"},
			{name: "keep", value: named("WHAT", mlp.Keeps()...), usage: "what the forward pass writes for the backward pass: nothing (default), pre, or hidden, which is pre and silu(pre)"},
			{name: "tokens", usage: "rows of x (default 18048 on a GPU, 128 on a CPU device)", size: true},
			{name: "in", usage: "columns of x (default 512, or 32)", size: true},
			{name: "hidden", usage: "hidden units (default 1365, or 85)", size: true},
			{name: "out", usage: "columns of y (default 512, or 32)", size: true},
			{name: "dtype", usage: "format of all tensors: float16, bfloat16 (default on a GPU) or float32", size: true},
			{name: "config", field: "FusedConfig", usage: "tile sizes of path fused, in the words of the column runs, instead of the table's", size: true},
		},
		base: func(cpu bool) *call.MLP { return newMLP(18048, 0, 512, cpu) },
		file: func(s *Source, m *call.MLP) error {
			return cmp.Or(s.into(m, "x", "dtype", "tokens", "in"), s.into(m, "w2", "", "hidden", "out"))
		},
		cases: []string{"--tokens=18048", "--tokens=11000", "--tokens=205000"},
		tune: func(caps *vk.Caps, op calledOp[*call.MLP], p bench.Pass) ([]bench.Tunable, error) {
			return partTunables(caps, op, p, op.c.Out)
		},
	}
	k.shrink = func(m *call.MLP) {
		tokens := m.Tokens
		m.Problem = k.base(true).Problem
		m.Tokens = tokens / 200
	}
	if grouped {
		k.name, k.cases = "grouped", []string{"--tokens=16000", "--tokens=5000"}
		k.keys = "dtype grad_dtype tokens heads in hidden out heads_at_a_time products keep"
		k.flags = slices.Concat(headFlags, k.flags[:len(k.flags)-1])
		k.base = func(cpu bool) *call.MLP { return newMLP(16000, 10, 3, cpu) }
		k.check = func(m *call.MLP, _ *pflag.FlagSet) error {
			if m.Heads < 1 {
				return fmt.Errorf("grouped: heads=%d is not positive", m.Heads)
			}
			return nil
		}
		k.file = func(s *Source, m *call.MLP) error {
			return cmp.Or(s.into(m, "x", "dtype", "tokens", "in"), s.into(m, "w2", "", "heads", "hidden", "out"))
		}
		for i := range k.flags {
			switch x := &k.flags[i]; x.name {
			case "keep":
				x.value, x.usage = named("WHAT", mlp.Keeps()[:2]...), "what the forward pass writes for the backward pass: nothing (default) or pre"
			case "tokens":
				x.usage = "rows of x (default 16000 on a GPU, 128 on a CPU device)"
			case "hidden":
				x.usage = "hidden units of a head (default 1365, or 85)"
			case "out":
				x.usage = "columns of y of a head (default 3)"
			}
		}
	}
	return k
}

// headFlags are the flags of heads.
var headFlags = []flag{
	{name: "heads-at-a-time", usage: "most heads whose hidden units are in memory at a time (default: 256 MiB of them, 512 MiB if a pass has one such tensor instead of two, 256 MiB of sums of outputs if it has none)"},
	{name: "products", usage: "write hidden units to memory, also where a pass needs not"},
	{name: "heads", usage: "heads (default 10, or 3)", size: true},
}

// newMLP returns a call of the training workload, or a small one for a CPU device.
func newMLP(tokens, heads, out int, cpu bool) *call.MLP {
	m := &call.MLP{Problem: mlp.Problem{Tokens: tokens, Heads: heads, In: 512, Hidden: 1365, Out: out, DType: dtype.BFloat16}}
	if cpu {
		m.Problem = mlp.Problem{Tokens: 128, Heads: min(heads, 3), In: 32, Hidden: 85, Out: min(out, 32), DType: dtype.Float16}
	}
	return m
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
