package kernels

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/safetensors"
	"github.com/flashvk/flashvk/vk"
)

var _ = row(Kernel{
	Impls: pathNames(attention.Auto, attention.Impls()), AllPaths: true, How: []string{"dtype"}, Backward: true,
	Tiny: []string{"batch=1", "heads=1", "seqlen=16", "headdim=64"},
	Tune: &Tune{
		Impls: []string{"coopmat2", "coopmat", "scalar"},
		Unless: func(cpu bool) []string {
			if cpu {
				return []string{"headdim=64", "causal=both", "heads=4"}
			}
			return []string{"headdim=64,128", "causal=both"}
		},
	},
}, attentionCalls())

// attentionCalls are the calls that commands make.
func attentionCalls() *calls[*attending] {
	return &calls[*attending]{
		name: "attention", describe: func(a *attending) string { return DescribeAttention(a.Problem) },
		derived: (*attending).derived,
		check:   checkAttention, tensors: attentionTensors, file: attentionFile, axes: attentionAxes, doubts: attentionDoubts,
		aliases: map[string]string{"cu_seqlens_k": "cu_seqlens_kv"}, // flash-attn's name
		values: scoreValues(map[string]value{
			"layout":       parsed(OneOf([]string{layoutBHSD, layoutBSHD}), "ORDER"),
			"causal-align": named("CORNER", attention.BottomRight, attention.TopLeft),
			"dropout":      parsed(ParseFloat, "P"),
			"seed":         parsed(parseSeed, intKind),
			"bias":         biasValue,
			"config":       parsed(parseAttentionConfig, "CONFIG"),
			"quant":        named("FORMAT", dtype.QuantInt8, dtype.QuantE4M3),
		}),
		unsaid: func(a *attending, f *pflag.FlagSet) {
			if f.Changed("heads") && !f.Changed("kv-heads") {
				a.NumKVHeads = a.NumHeads
			}
			if f.Changed("seqlen") && !f.Changed("seqlen-kv") {
				a.SeqKV = a.SeqQ
			}
		},
		shrink: func(a *attending, by [3]int) {
			group := a.NumHeads / a.NumKVHeads
			a.Batch, a.NumKVHeads = max(a.Batch/by[0], 1), max(a.NumKVHeads/by[1], 1)
			a.NumHeads, a.SeqQ, a.SeqKV = group*a.NumKVHeads, max(a.SeqQ/by[2], 1), max(a.SeqKV/by[2], 1)
		},
		path:   (*attending).on,
		sample: func(a *attending) int { return sampleRows(&a.Problem) },
		tune: func(_ *vk.Caps, op calledOp[*attending], p bench.Pass) ([]bench.Tunable, error) {
			if !op.c.Plain() {
				return nil, fmt.Errorf("attention: %s: the table has no rows for features", op.Describe())
			}
			return op.choices(p, op.c.Problem, nil), nil
		},
	}
}

// scoreValues adds the values of all kernels with scores.
func scoreValues(more map[string]value) map[string]value {
	more["window"] = parsed(parseWindow, "L,R")
	more["alibi"] = named("SLOPES", attention.ALiBiPerHead, attention.ALiBiPerBatchHead)
	return more
}

// maxPacked bounds the sequences of flags.
const maxPacked = 1 << 20

// sampleRows returns the number of rows that are compared: as many as the reference computes in
// some seconds on a few cores, but not fewer than 32.
func sampleRows(p *attention.Problem) int {
	const operations, least = 2e9, 32
	return max(int(operations/(4*float64(p.SeqKV)*float64(p.HeadDim+p.ValueHeadDim()))), least)
}

// parseAttentionConfig reads a configuration of either pass.
func parseAttentionConfig(text string) (any, error) {
	b, backward := attention.ParseBackwardConfig(text)
	if backward == nil {
		return b, nil
	}
	c, forward := attention.ParseConfig(text)
	if forward != nil {
		return nil, fmt.Errorf("%w; %w", forward, backward)
	}
	return c, nil
}

// biasValue is the value of --bias, which leaves the format as it is.
func biasValue(to any) pflag.Value {
	bias := to.(*attention.Bias)
	return Value[attention.Bias]{bias, func(text string) (attention.Bias, error) {
		b := attention.Bias{On: true, DType: bias.DType}
		if text == "shared" {
			return b, nil
		}
		for _, name := range strings.Split(text, ",") {
			axis, ok := map[string]*bool{"batch": &b.Batch, "heads": &b.Heads, "rows": &b.Rows}[name]
			if !ok {
				return b, fmt.Errorf("%q is not one of batch, heads, rows", name)
			}
			if *axis {
				return b, fmt.Errorf("%q occurs twice", name)
			}
			*axis = true
		}
		return b, nil
	}, "AXES", ""}
}

// parseWindow reads two numbers of keys. A window that is unlimited to both
// sides is none.
func parseWindow(text string) (attention.Window, error) {
	left, right, ok := strings.Cut(text, ",")
	l, errLeft := ParseInt(left)
	r, errRight := ParseInt(right)
	switch {
	case !ok:
		return attention.Window{}, errors.New("not two numbers L,R")
	case errors.Join(errLeft, errRight) != nil:
		return attention.Window{}, errors.New("not two integers L,R")
	case l == attention.Unlimited && r == attention.Unlimited:
		return attention.Window{}, nil
	}
	return attention.Window{On: true, Left: l, Right: r}, nil
}

func parseSeed(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, errors.New("not an integer from 0 to 2^64-1")
	}
	return n, nil
}

// checkAttention returns an error if flags contradict each other, and sets what follows from them.
func checkAttention(a *attending, f *pflag.FlagSet) error {
	a.Dropout.Seeded = a.Dropout.Seeded || f.Changed("seed")
	aligned := a.Causal || a.Window.On || a.ALiBi != attention.ALiBiOff
	switch {
	case a.Dropout.P != 0 && !a.Dropout.Seeded:
		return fmt.Errorf("--dropout %v needs --seed", a.Dropout.P)
	case f.Changed("seed") && !f.Changed("dropout"):
		return fmt.Errorf("--seed %d needs --dropout", a.Dropout.Seed)
	case f.Changed("bias-dtype") && !a.Bias.On:
		return fmt.Errorf("--bias-dtype %v needs --bias", a.Bias.DType)
	case a.Packed && a.Batch > maxPacked:
		return fmt.Errorf("--varlen with --batch %d is more than %d sequences", a.Batch, maxPacked)
	case f.Lookup("layout") != nil && !a.file: // the slopes of ALiBi may be in a file
		a.CausalAlign = attention.BottomRight
	case f.Changed("causal-align") && !aligned:
		return fmt.Errorf("--causal-align %v needs --causal, --window or ALiBi's slopes", a.CausalAlign)
	}
	return cmp.Or(checkScores(&a.Problem, f), a.prepare())
}

// checkScores returns an error for zeros that would mean something else.
func checkScores(p *attention.Problem, f *pflag.FlagSet) error {
	switch {
	case f.Changed("scale") && p.Scale == 0:
		return errors.New("--scale 0 is not possible; leave it out for the default, 1/√headdim")
	case f.Changed("softcap") && p.Softcap == 0:
		return errors.New("--softcap 0 is not possible; leave it out for none")
	case f.Changed("value-dim") && p.ValueDim == 0: // 0 would mean headdim
		return errors.New("--value-dim 0 is not positive")
	}
	return nil
}

// The orders of axes that files of attention may have.
const (
	layoutBHSD = "bhsd"
	layoutBSHD = "bshd" // flash-attn's
)

// attentionAxes exchanges the axes of heads and of the sequence for flash-attn's order. Packed
// sequences, of three axes, are (total, heads, headdim) in both orders.
func attentionAxes(a *attending, tensor string, rank int) []int {
	if a.Order != layoutBSHD || rank != 4 || !slices.Contains([]string{"q", "k", "v", "o", "do", "dq", "dk", "dv"}, tensor) {
		return nil
	}
	return []int{0, 2, 1, 3}
}

// attentionDoubts doubts the order of axes if no flag gives the order, there are fewer queries than
// heads, and the other order would be valid, too. It doubts the corner of a causal mask if no flag
// names the corner, and PyTorch's corner gives another mask.
func attentionDoubts(a *attending, f *pflag.FlagSet) (list []string) {
	other := a.Problem
	other.NumHeads, other.SeqQ, other.NumKVHeads, other.SeqKV = a.SeqQ, a.NumHeads, a.SeqKV, a.NumKVHeads
	plain := !a.Varlen.On && !a.Bias.On && !a.KeyMask && !a.Sinks && a.ALiBi == attention.ALiBiOff // others show the order
	if plain && !f.Changed("layout") && a.SeqQ < a.NumHeads && other.Validate() == nil {
		list = append(list, fmt.Sprintf("q %v has %d heads and sequences of %d: if the axes are (batch, seq, heads, headdim), as flash-attn has them, say --layout bshd; --layout bhsd says that they are not",
			a.QShape(), a.NumHeads, a.SeqQ))
	}
	q, kv := a.CuSeqlens()
	if same := a.SeqQ == a.SeqKV && slices.Equal(q, kv); a.Causal && !f.Changed("causal-align") && !same {
		list = append(list, fmt.Sprintf("the causal mask of %d queries and %d keys ends in the bottom right corner, as flash-attn has it; is_causal=True of PyTorch's scaled_dot_product_attention is the other one, --causal-align top-left; --causal-align bottom-right says that this is meant",
			a.SeqQ, a.SeqKV))
	}
	return list
}

// attentionFile sets sizes, formats and features from the tensors of a file.
func attentionFile(s *Source, a *attending) error {
	p := &a.Problem
	a.file, a.DLSE = true, s.has("dlse")
	cuQ, errQ := s.ints("cu_seqlens_q", "batch+1")
	cuKV, errKV := s.ints("cu_seqlens_kv", "batch+1")
	p.Varlen.On = s.has("cu_seqlens_q") || s.has("cu_seqlens_kv")
	q := []string{"batch", "num_heads", "seq_q", "head_dim"}
	k := []string{"batch", "num_kv_heads", "seq_kv", "head_dim"}
	if p.Varlen.On {
		q, k = []string{"total", "num_heads", "head_dim"}, []string{"total", "num_kv_heads", "head_dim"}
	}
	v := append(slices.Clone(k[:len(k)-1]), "value_dim")
	if err := cmp.Or(errQ, errKV, s.into(a, "q", "dtype", q...), s.into(a, "k", "", k...), s.into(a, "v", "", v...)); err != nil {
		return err
	}
	if p.ValueDim == p.HeadDim {
		p.ValueDim = 0
	}
	if p.Varlen.On {
		if len(cuQ) < 2 || len(cuKV) != len(cuQ) {
			return fmt.Errorf(`tensors "cu_seqlens_q" and "cu_seqlens_kv": %d and %d entries are not batch+1 each`, len(cuQ), len(cuKV))
		}
		of, _ := s.Tensor("q")
		kv, _ := s.Tensor("k")
		p.Batch, p.SeqQ, p.SeqKV = len(cuQ)-1, 1, 1
		p.Varlen.TotalQ, p.Varlen.TotalKV = of.Shape[0], kv.Shape[0]
		for b := range p.Batch {
			n := [2]int{int(cuQ[b+1] - cuQ[b]), int(cuKV[b+1] - cuKV[b])}
			a.Lengths, p.SeqQ, p.SeqKV = append(a.Lengths, n), max(p.SeqQ, n[0]), max(p.SeqKV, n[1])
		}
		if err := p.CheckCuSeqlens(cuQ, cuKV); err != nil {
			return err
		}
	}
	return scoresOfFile(s, p)
}

// scoresOfFile sets the features that tensors show.
func scoresOfFile(s *Source, p *attention.Problem) error {
	p.KeyMask, p.Sinks = s.has("key_mask"), s.has("sinks")
	if slopes, ok := s.Tensor("alibi_slopes"); ok {
		if p.ALiBi = attention.ALiBiPerHead; len(slopes.Shape) == 2 {
			p.ALiBi = attention.ALiBiPerBatchHead
		}
	}
	bias, ok := s.Tensor("bias")
	if !ok {
		return nil
	}
	if _, err := s.shape("bias", "batch or 1", "heads or 1", "seq_q or 1", "seq_kv"); err != nil {
		return err
	}
	p.Bias = attention.Bias{On: true, Batch: bias.Shape[0] != 1, Heads: bias.Shape[1] != 1, Rows: bias.Shape[2] != 1}
	if bias.DType != safetensors.F32 {
		p.Bias.DType = p.DType
	}
	return nil
}
