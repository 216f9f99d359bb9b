// This file has the kernels whose calls need nothing but a row.

package kernels

import (
	"cmp"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/pipelines/decoder"
	"github.com/flashvk/flashvk/pipelines/glu"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/pipelines/normlinear"
	"github.com/flashvk/flashvk/vk"
)

var _ = row(Kernel{}, &calls[*call.Dropout]{
	name:   "dropout",
	file:   func(s *Source, d *call.Dropout) error { return s.into(d, "x", "dtype", "rows", "cols") },
	shrink: func(d *call.Dropout, _ [3]int) { d.Rows /= 100 },
})

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

var _ = row(Kernel{Backward: true}, &calls[*call.GLU]{
	name:   "glu",
	values: map[string]value{"activation": parsed(glu.ParseActivation, "NAME")},
	file: func(s *Source, g *call.GLU) error {
		if g.Beside = s.has("gu"); !g.Beside {
			return s.into(g, "g", "dtype", "rows", "cols")
		}
		err := s.into(g, "gu", "dtype", "rows", "cols")
		g.Cols /= 2
		return err
	},
	shrink: func(g *call.GLU, _ [3]int) { g.Rows /= 100 },
})

var _ = row(Kernel{Backward: true}, &calls[*call.GMM]{
	name:  "gmm",
	start: func() *call.GMM { return &call.GMM{LogP: true, Loss: true, Interleaved: true} },
	file: func(s *Source, g *call.GMM) error {
		if g.Interleaved = s.has("p"); s.has("dloss") {
			g.DLoss = 1
		}
		if !g.Interleaved {
			return s.into(g, "logit", "dtype", "tokens", "components")
		}
		return s.into(g, "p", "dtype", "tokens", "components", "logit mu log_sigma")
	},
	shrink: func(g *call.GMM, _ [3]int) { g.Tokens /= 10 },
})

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

var _ = row(Kernel{Backward: true, Tune: &Tune{}}, &calls[*call.Norm]{
	name:   "norm",
	values: map[string]value{"config": parsed(pointer(norm.ParseConfig), "CONFIG")},
	start:  func() *call.Norm { return &call.Norm{Save: true, DResidual: true} },
	file: func(s *Source, n *call.Norm) error {
		n.Residual, n.Bias = s.has("residual"), s.has("b")
		return cmp.Or(s.into(n, "x", "dtype", "rows", "cols"), s.into(n, "w", "weight_dtype", "cols"))
	},
	shrink: func(n *call.Norm, _ [3]int) { n.Rows /= 100 },
	derived: func(n *call.Norm) map[string]any {
		return map[string]any{"kind": map[bool]string{false: "LayerNorm", true: "RMSNorm"}[n.RMS]}
	},
})

var _ = row(Kernel{Tune: &Tune{}}, &calls[*call.NormLinear]{
	name: "normlinear",
	values: map[string]value{
		"config":     parsed(pointer(normlinear.ParseConfig), "CONFIG"),
		"activation": parsed(glu.ParseActivation, "NAME"),
	},
	file: func(s *Source, n *call.NormLinear) error {
		n.Residual, n.Bias = s.has("residual"), s.has("bias")
		err := cmp.Or(s.into(n, "x", "dtype", "rows", "in"), s.into(n, "w", "dtype", "out", "in"))
		if n.GLU {
			n.Out /= 2
		}
		return err
	},
	shrink: func(n *call.NormLinear, _ [3]int) { n.Out = max(1, n.Out/64) },
})

var _ = row(Kernel{}, &calls[*call.Quantize]{
	name:   "quantize",
	values: map[string]value{"quant": named("FORMAT", dtype.Quants()...)},
	check: func(q *call.Quantize, f *pflag.FlagSet) error {
		if (q.Whole || q.Quant.Block() > 0) && !f.Changed("block") {
			q.Block = 0
		}
		return nil
	},
	file: func(s *Source, q *call.Quantize) error {
		return s.into(q, "x", "dtype", "batch", "heads", "rows", "cols")
	},
	shrink: func(q *call.Quantize, _ [3]int) { q.Rows /= 100 },
	sample: func(*call.Quantize) int { return 1024 },
})

var _ = row(Kernel{Backward: true}, &calls[*call.Rope]{
	name:   "rope",
	values: map[string]value{"scaling": parsed(attention.ParseScaling, "NAME")},
	check: func(r *call.Rope, _ *pflag.FlagSet) error {
		if r.Dims == 0 {
			r.Dims = r.HeadDim
		}
		return nil
	},
	file: func(s *Source, r *call.Rope) error {
		err := s.into(r, "q", "dtype", "batch", "heads", "seq", "headdim")
		if s.has("k") {
			err = cmp.Or(err, s.into(r, "k", "", "batch", "kv_heads", "seq", "headdim"))
		}
		x, ok := s.Tensor("positions")
		if r.Shared = ok && len(x.Shape) == 1; !ok && err == nil {
			err = fmt.Errorf("tensor %q is missing", "positions")
		}
		return err
	},
	shrink: func(r *call.Rope, _ [3]int) { r.Seq = max(1, r.Seq/16) },
	sample: func(*call.Rope) int { return 1024 },
})

var _ = row(Kernel{}, &calls[*call.Sample]{
	name:   "sample",
	file:   func(s *Source, x *call.Sample) error { return s.into(x, "logits", "dtype", "rows", "vocabulary") },
	shrink: func(x *call.Sample, _ [3]int) { x.Vocabulary = max(1, x.Vocabulary/16) },
	sample: func(x *call.Sample) int { return max(1, 1<<22/x.Vocabulary) },
})

var _ = row(Kernel{Impls: implNames(), Backward: true}, &calls[*call.Xent]{
	name:  "xent",
	start: func() *call.Xent { return &call.Xent{Losses: true, LSE: true, Loss: true} },
	file: func(s *Source, x *call.Xent) error {
		if s.has("dloss") {
			x.DLoss = 1
		}
		if s.has("logits") {
			x.Dim = 0
			return s.into(x, "logits", "dtype", "tokens", "vocabulary")
		}
		if err := s.into(x, "h", "dtype", "tokens", "dim"); err != nil {
			return err
		}
		return s.into(x, "w", "dtype", "vocabulary", "dim")
	},
	shrink: func(x *call.Xent, _ [3]int) {
		x.Tokens, x.Vocabulary, x.Dim = x.Tokens/100, x.Vocabulary/100, x.Dim/10
	},
	sample:  func(x *call.Xent) int { return max(4, 1<<28/(x.Vocabulary*max(x.Dim, 16))) },
	derived: func(x *call.Xent) map[string]any { return map[string]any{"grad_dtype": x.GradDType()} },
})

var _ = row(Kernel{}, &calls[*call.Decoder]{
	name:   "decoder",
	values: map[string]value{"config": parsed(pointer(decoder.ParseConfig), "CONFIG")},
	check: func(d *call.Decoder, f *pflag.FlagSet) error {
		switch {
		case d.Layers < 0:
			return fmt.Errorf("decoder: layers=%d is negative", d.Layers)
		case f.Changed("length") && (d.Length < 0 || d.Length >= d.Keys):
			return fmt.Errorf("decoder: length=%d is not from 0 to keys-1=%d", d.Length, d.Keys-1)
		case f.Lookup("length") != nil && !f.Changed("length"):
			d.Length = d.Keys - 1
		}
		return nil
	},
	file: func(s *Source, d *call.Decoder) error {
		d.Bias = s.has("bias")
		err := cmp.Or(s.into(d, "x", "dtype", "", "width"), s.into(d, "down", "", "", "hidden"), s.into(d, "k", "", "kv_heads", "keys", "headdim"))
		lens, bad := s.ints("seq_lens", "one")
		if err = cmp.Or(err, bad); len(lens) == 1 {
			d.Length = int(lens[0])
		}
		d.KVHeads /= max(d.Layers, 1)
		if out, ok := s.Tensor("out"); ok && err == nil && len(out.Shape) == 2 {
			d.Heads = out.Shape[1] / max(d.HeadDim, 1)
		}
		return err
	},
	shrink: func(d *call.Decoder, _ [3]int) { d.Layers = 1 },
})
