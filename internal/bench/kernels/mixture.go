package kernels

import (
	"cmp"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk"
)

// headMixture is the row of mixture.
func headMixture() Kernel {
	k := calls[*call.Mixture]{
		name: "mixture",
		flags: []flag{
			{name: "grad-dtype", field: "Grad", usage: "format of dw1 and dw2: float16, bfloat16 or float32 (default: the format of x)"},
			{name: "groups", usage: "most groups of heads that workgroups divide (default: what fills the device)"},
			{name: "outputs", usage: "write the outputs of heads to memory in the forward pass, also where it needs not"},
			headFlags[0],
			{name: "tokens", usage: "rows of x (default 16000 on a GPU, 128 on a CPU device)", size: true},
			headFlags[2],
			{name: "in", usage: "columns of x (default 512, or 32)", size: true},
			{name: "hidden", usage: "hidden units of a head (default 1365, or 85)", size: true},
			{name: "dtype", usage: "format of x, w1 and w2: float16, bfloat16 (default on a GPU) or float32", size: true},
		},
		base: newMixture,
		file: func(s *Source, m *call.Mixture) error {
			if s.has("dloss") {
				m.DLoss = 1
			}
			return cmp.Or(s.into(m, "x", "dtype", "tokens", "in"), s.into(m, "w2", "", "heads", "hidden", "logit mu log_sigma"))
		},
		cases: []string{"--tokens=16000", "--tokens=5000"},
		shrink: func(m *call.Mixture) {
			tokens := m.Tokens
			m.Problem = newMixture(true).Problem
			m.Tokens = tokens / 200
		},
		keys:    "dtype grad_dtype tokens heads in hidden groups outputs heads_at_a_time",
		derived: func(m *call.Mixture) map[string]any { return map[string]any{"grad_dtype": m.GradDType()} },
		sample:  func(m *call.Mixture) int { return sampleTokens(m.Perceptrons()) },
		tune: func(caps *vk.Caps, op calledOp[*call.Mixture], p bench.Pass) ([]bench.Tunable, error) {
			return partTunables(caps, op, p, 3)
		},
	}
	return Kernel{
		Name: "mixture", Title: "the log-probability of Gaussian mixtures whose components are heads", Impls: implNames(),
		New: k.New, Backward: true, How: []string{"outputs"},
		Formulas: `
    (logit, mu, log_sigma)[:,k] = silu(x * w1[k]) * w2[k]      silu(v) = v / (1 + exp(-v))
    log_w = log_softmax(logit)
    log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
    log_p = logsumexp over heads of log_w + log_n
    loss  = -mean(log_p)`,
		About: `On matrices the outputs of heads stay on the chip. For comparison, --outputs writes them to
memory, as the kernels grouped and gmm do. Where tokens are sampled, the loss and the
gradients of weights, which are sums over all tokens, must only be written.`,
		Files: `
    x (tokens, in), F16, BF16 or F32; w1 (heads, in, hidden), as x
    w2 (heads, hidden, 3), as x: logit, mu, log sigma; y (tokens), F32
    written: log_p (tokens), loss (1), F32
and with --backward
    dloss (1), F32: the gradient by the loss; 1 if it is missing
    written: dx as x; dw1, dw2 as w1, w2, in the format of --grad-dtype`,
		Examples: []string{
			"bench --tokens 16000 --heads 10 --in 512 --hidden 1365 --dtype bfloat16 --outputs",
			`bench --suite training --both --peer torch="python3 tools/peers/torch_train.py"`,
			"run --in x.safetensors --out loss.safetensors --backward --grad-dtype float32",
			"sweep --heads 1..16x2 --csv mixture.csv",
			"tune --suite training --backward",
		},
		Tune: &Tune{
			About: `It tries the fused kernel of the forward pass or, where outputs are in memory (as with
--backward), the products and kernels of grouped. ` + tunesProducts,
			Impls: implNames()[1:],
		},
	}
}

// newMixture returns a call of the training workload, or a small one for a CPU device.
func newMixture(cpu bool) *call.Mixture {
	p := mixture.Problem{Tokens: 16000, Heads: 10, In: 512, Hidden: 1365, DType: dtype.BFloat16}
	if cpu {
		p = mixture.Problem{Tokens: 128, Heads: 3, In: 32, Hidden: 85, DType: dtype.Float16}
	}
	return &call.Mixture{Problem: p, LogP: true, Loss: true}
}
