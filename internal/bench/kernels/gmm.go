package kernels

import (
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/gmm"
)

// mixtures is the row of gmm.
func mixtures() Kernel {
	k := calls[*call.GMM]{
		name: "gmm",
		flags: []flag{
			{name: "tokens", usage: "tokens", size: true},
			{name: "components", usage: "components of a mixture", size: true},
			{name: "dtype", usage: "format of the mixtures: float16, bfloat16 or float32 (default)", size: true},
		},
		base: func(bool) *call.GMM {
			return &call.GMM{Problem: gmm.Problem{Tokens: 16000, Components: 10}, LogP: true, Loss: true, Interleaved: true}
		},
		file: func(s *Source, g *call.GMM) error {
			if g.Interleaved = s.has("p"); s.has("dloss") {
				g.DLoss = 1
			}
			if !g.Interleaved {
				return s.into(g, "logit", "dtype", "tokens", "components")
			}
			return s.into(g, "p", "dtype", "tokens", "components", "logit mu log_sigma")
		},
		cases:  []string{"--tokens=16000", "--tokens=5000"},
		shrink: func(g *call.GMM) { g.Tokens /= 10 },
		keys:   "dtype tokens components",
	}
	return Kernel{
		Name: "gmm", Title: "the log-probability of Gaussian mixtures", Impls: []string{"auto"}, New: k.New, Backward: true,
		Fixed: "its workgroups are of one size on every device",
		Formulas: `
    log_w = log_softmax(logit)
    log_n = -((y - mu) / exp(log_sigma))² / 2 - log_sigma - log(2π) / 2
    log_p = logsumexp over components of log_w + log_n
    loss  = -mean(log_p)`,
		Files: `
    p (tokens, components, 3), F16, BF16 or F32: logit, mu, log sigma; or three tensors logit, mu,
    log_sigma (tokens, components), of one format; y (tokens), F32
    written: log_p (tokens), loss (1), F32
and with --backward
    dloss (1), F32: the gradient by the loss; 1 if it is missing
    written: dp as p, or dlogit, dmu and dlog_sigma`,
		Examples: []string{
			"bench --tokens 5000 --components 10 --backward",
			`bench --suite training --peer torch="python3 tools/peers/torch_train.py"`,
			"run --in p.safetensors --out loss.safetensors --backward",
			"sweep --tokens 1024..65536x4 --csv gmm.csv",
		},
	}
}
