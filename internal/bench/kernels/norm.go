package kernels

import (
	"cmp"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
)

// normalization is the row of norm.
func normalization() Kernel {
	k := calls[*call.Norm]{
		name: "norm",
		flags: []flag{
			{name: "rms", usage: "RMSNorm: without the mean"},
			{name: "eps", usage: "term added to the variance"},
			{name: "rows", usage: "rows (default 205000 on a GPU, 256 on a CPU device)", size: true},
			{name: "cols", usage: "elements of a row (default 512)", size: true},
			{name: "dtype", usage: "format of the rows: float16, bfloat16 (default) or float32", size: true},
			{name: "weight-dtype", usage: "format of the weight: float32 (default) or the format of the rows", size: true},
			{name: "residual", usage: "add a second tensor first, and write the sum", size: true},
			{name: "config", usage: "how invocations share rows, in the words of the column runs, instead of the choice of flashvk", size: true, value: parsed(pointer(norm.ParseConfig), "CONFIG")},
		},
		base: func(cpu bool) *call.Norm {
			if cpu {
				return newNorm(256, 512, dtype.Float16)
			}
			return newNorm(205000, 512, dtype.BFloat16)
		},
		file: func(s *Source, n *call.Norm) error {
			n.Residual = s.has("residual")
			return cmp.Or(s.into(n, "x", "dtype", "rows", "cols"), s.into(n, "w", "weight_dtype", "cols"))
		},
		cases: []string{
			"--dtype=bfloat16 --rows=18048", "--dtype=bfloat16 --rows=11000", "--dtype=bfloat16 --rows=205000", "--dtype=bfloat16 --rows=16384 --cols=4096",
		},
		shrink: func(n *call.Norm) { n.Rows /= 100 },
		keys:   "kind dtype weight_dtype rows cols residual eps",
		derived: func(n *call.Norm) map[string]any {
			return map[string]any{"kind": map[bool]string{false: "LayerNorm", true: "RMSNorm"}[n.RMS]}
		},
		tune: func(_ *vk.Caps, op calledOp[*call.Norm], p bench.Pass) ([]bench.Tunable, error) {
			return op.choices(p, op.c.Problem, nil), nil
		},
	}
	return Kernel{
		Name: "norm", Title: "layer normalization", Impls: []string{"auto"}, New: k.New, Backward: true,
		Formulas: `
    s       = round(x + residual)                    to the format of x, if there is a residual; else x
    mean[r] = mean(s[r,:])                           0 with --rms
    rstd[r] = 1 / sqrt(mean((s[r,:] - mean[r])²) + eps)
    y[r,c]  = (s[r,c] - mean[r]) * rstd[r] * w[c]`,
		About: "The rate counts memory traffic: each tensor is read or written once.",
		Files: `
    x (rows, cols), F16, BF16 or F32; w (cols), F32 or as x; residual as x, which may be missing
    written: y as x; mean, but not with --rms, and rstd (rows), F32; sum, if there is a residual
and with --backward
    dy and, if there is a residual, dsum, as x: the gradients by y and sum
    written: dx and, if there is a residual, dresidual, as x; dw as w`,
		Examples: []string{
			"bench --rows 18048 --cols 512 --dtype bfloat16 --backward",
			"run --in x.safetensors --out y.safetensors --rms --eps 1e-6 --backward",
			"sweep --rows 1024..262144x4 --cols 512,4096 --csv norm.csv",
			"tune --rows 18048,205000 --cols 512 --dtype bfloat16 --backward",
		},
		Tune: &Tune{About: "It tries how workgroups share rows.", Impls: []string{"auto"}},
	}
}

// newNorm returns a call with all outputs.
func newNorm(rows, cols int, t dtype.DType) *call.Norm {
	return &call.Norm{Problem: norm.Problem{Rows: rows, Cols: cols, Eps: 1e-5, DType: t}, Save: true, DResidual: true}
}
