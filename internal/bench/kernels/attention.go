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
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/safetensors"
)

// softmaxAttention is the row of attention.
func softmaxAttention() Kernel {
	impls := []string{attention.Auto.String()}
	for _, i := range attention.Impls() {
		impls = append(impls, i.String())
	}
	return Kernel{
		Name: "attention", Title: "softmax attention", Impls: impls, AllPaths: true, How: []string{"dtype"},
		New: attentionCalls().New, Backward: true,
		Formulas: `
    x   = softcap(scale * q * kᵀ) + bias - slope * |i + shift - j|
    o   = softmax(x) * v
    lse = log(sum(exp(x)))     of each row
where shift is seq_kv - seq_q, or 0 with --causal-align top-left.`,
		About: `Rates count 4*batch*heads*entries*headdim operations, with entries the unmasked pairs of
query and key, and 2.5 times as many for the backward pass. Default sizes: batch 4, heads 16,
seqlen 4096, headdim 128 on a GPU; batch 1, heads 4, kv-heads 2, seqlen 256, headdim 64 on a
CPU device.`,
		Files: `
    q (batch, heads, seq_q, headdim), F16, BF16 or F32; k (batch, kv-heads, seq_kv, headdim), v (batch,
    kv-heads, seq_kv, valuedim), as q; with --layout bshd in another order of axes
    written: o (batch, heads, seq_q, valuedim), as q; lse (batch, heads, seq_q), F32
There may be
    bias (batch or 1, heads or 1, seq_q or 1, seq_kv), F32 or as q; alibi_slopes (heads) or (batch,
    heads), F32; key_mask (batch, seq_kv), BOOL: true is visible; sinks (heads), F32: a term of the sum
    cu_seqlens_q, cu_seqlens_kv (batch+1), I32: the first row of each sequence. Then q, k, v and o are
    packed as (total, heads, headdim), lse as (heads, total); seq_q and seq_kv are the longest lengths
A row that sees no key has o = 0 and lse = -Inf, or its sink; one after the last sequence o = 0 and
lse = -Inf. With --backward there are
    do, dlse as o, lse: the gradient of a loss by them; dlse may be missing
    written: dq, dk, dv as q, k, v; dbias and dsinks as bias and sinks, summed over the axes that are 1`,
		Examples: []string{
			"bench --batch 2 --heads 8 --kv-heads 4 --seqlen 1024 --headdim 128 --dtype bfloat16 --causal",
			"bench --seqlen 1 --seqlen-kv 16384 --impl coopmat2,scalar --format csv",
			`bench --suite throughput --peer torch="python3 tools/peers/torch_sdpa.py"`,
			"bench --format benchfmt > new.txt && benchstat -col /impl new.txt",
			"run --in qkv.safetensors --out o.safetensors --causal --causal-align top-left --scale 0.1",
			"run --in qkv-do.safetensors --out gradients.safetensors --backward --causal",
			"sweep --seqlen 512..16384x2 --headdim 64,128 --causal --csv attention.csv",
			"tune --headdim 64,128 --dtype float16,bfloat16 --seqlen 512,4096 --budget 2m",
		},
		Tiny: []string{"batch=1", "heads=1", "seqlen=16", "headdim=64"},
		Tune: &Tune{
			About: "But headdim is 64 and 128 (64 on a CPU device), and causal is both.",
			Impls: []string{"coopmat2", "coopmat", "scalar"},
			Unless: func(cpu bool) []string {
				if cpu {
					return []string{"headdim=64", "causal=both", "heads=4"}
				}
				return []string{"headdim=64,128", "causal=both"}
			},
		},
	}
}

// attentionCalls are the calls that commands make.
func attentionCalls() *calls[*attending] {
	return &calls[*attending]{
		name: "attention", describe: func(a *attending) string { return DescribeAttention(a.Problem) },
		keys:    "dtype batch heads kv_heads seq_q seq_kv head_dim causal causal_align scale value_dim window softcap alibi bias key_mask sinks varlen dropout",
		derived: (*attending).derived,
		check:   checkAttention, tensors: attentionTensors, file: attentionFile, axes: attentionAxes, doubts: attentionDoubts,
		aliases: map[string]string{"cu_seqlens_k": "cu_seqlens_kv"}, // flash-attn's name
		flags: slices.Concat([]flag{
			{name: "batch", usage: "number of sequences", size: true},
			{name: "heads", field: "num_heads", usage: "query heads", size: true},
			{name: "kv-heads", field: "num_kv_heads", usage: "key and value heads, a divisor of heads (default: heads)", size: true},
			{name: "seqlen", field: "seq_q", usage: "queries per sequence", size: true},
			{name: "seqlen-kv", field: "seq_kv", usage: "keys per sequence (default: seqlen)", size: true},
			{name: "headdim", field: "head_dim", usage: "elements of a head, a multiple of 8 up to 256", size: true},
			{name: "dtype", usage: "float16 (default), bfloat16 or float32", size: true},
			{name: "layout", field: "order", file: true, value: parsed(OneOf([]string{layoutBHSD, layoutBSHD}), "ORDER"),
				usage: "order of axes of q, k, v, o and their gradients in files: bhsd (default), or bshd, (batch, seq, heads, headdim), as in flash-attn"},
			{name: "causal-align", usage: "corner that the causal mask, the window and ALiBi are aligned to: bottom-right (default) or top-left",
				value: named("CORNER", attention.BottomRight, attention.TopLeft)},
			{name: "dropout", field: "dropout.P", usage: "drop each weight with probability P; needs --seed", value: parsed(ParseFloat, "P")},
			{name: "seed", field: "dropout.Seed", usage: "seed of the dropout", value: parsed(parseSeed, intKind)},
		}, scoreFlags, []flag{
			{name: "bias", usage: "add a bias with these axes beside the keys: a comma list of batch, heads, rows; or shared, by all of them", size: true, value: biasValue},
			{name: "bias-dtype", field: "bias.DType", usage: "type of the bias: float32 (default) or the type of --dtype", size: true},
			{name: "key-mask", usage: "hide one key in eight from all queries of a batch, at random", size: true},
			{name: "varlen", field: "packed", usage: "pack sequences of seqlen, 3/4, 1/2 and 1/4 of it, and again", size: true},
			{name: "config", field: "chosen", usage: "how work is divided, in the words of the column runs of the pass, instead of the choice of flashvk", size: true, value: parsed(parseAttentionConfig, "CONFIG")},
		}),
		base: newAttending,
		unsaid: func(a *attending, f *pflag.FlagSet) {
			if f.Changed("heads") && !f.Changed("kv-heads") {
				a.NumKVHeads = a.NumHeads
			}
			if f.Changed("seqlen") && !f.Changed("seqlen-kv") {
				a.SeqKV = a.SeqQ
			}
		},
		suites:  bench.Suites(),
		problem: func(s *bench.Suite, i int) *attending { return newProblem(s.Problems[i]) },
		path:    (*attending).on,
		sample:  func(a *attending) int { return sampleRows(&a.Problem) },
		tune:    tuneAttention,
	}
}

// scoreFlags are the flags of all kernels with scores.
var scoreFlags = []flag{
	{name: "causal", usage: "hide the keys after each query"},
	{name: "scale", usage: "factor of the scores (default 1/√headdim)"},
	{name: "window", usage: "hide keys more than L before or R after each query's own; -1 is unlimited", value: parsed(parseWindow, "L,R")},
	{name: "softcap", usage: "replace each score x by F*tanh(x/F)"},
	{name: "value-dim", usage: "elements of a head of V and O (default: headdim)", size: true},
	{name: "alibi", usage: "subtract slope*distance, with slopes for heads (the value if none is given) or batch-heads", size: true,
		value: named("SLOPES", attention.ALiBiPerHead, attention.ALiBiPerBatchHead), unsaid: attention.ALiBiPerHead.String()},
	{name: "sinks", usage: "give each head a sink", size: true},
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
