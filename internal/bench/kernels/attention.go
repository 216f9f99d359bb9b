package kernels

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/enum"
)

// softmaxAttention is the row of attention.
func softmaxAttention() Kernel {
	impls := []string{attention.Auto.String()}
	for _, i := range attention.Impls() {
		impls = append(impls, i.String())
	}
	return Kernel{
		Name: "attention", Title: "softmax attention", Impls: impls, AllPaths: true, How: []string{"dtype"},
		New: func() Flags { return &attentionFlags{callFlags: attentionCalls().New().(*callFlags[*attending])} },
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
    q    (batch, heads, seq_q, headdim), F16, BF16 or F32
    k    (batch, kv-heads, seq_kv, headdim), as q
    v    (batch, kv-heads, seq_kv, valuedim), as q
    o    (batch, heads, seq_q, valuedim), as q; written
    lse  (batch, heads, seq_q), F32; written
which have another order of axes with --layout bshd, and may be packed. There may be
    bias           (batch or 1, heads or 1, seq_q or 1, seq_kv), F32 or as q
    alibi_slopes   (heads) or (batch, heads), F32
    key_mask       (batch, seq_kv), BOOL: true is visible
    sinks          (heads), F32: one more term of the sum and of lse
    cu_seqlens_q   (batch+1), I32: the first row of each sequence in q, then
    cu_seqlens_kv  (batch+1)       packed as (total, heads, headdim); likewise in k, v
A row that sees no key has o = 0 and lse = -Inf, or its sink. With cu_seqlens o is packed, and
lse is (heads, total); seq_q and seq_kv of the other tensors are the longest lengths. Rows
after the last sequence have o = 0 and lse = -Inf. With --backward there are
    do, dlse       as o, lse: the gradient of a loss by them; dlse may be missing
    dq, dk, dv     as q, k, v; written, 0 in no sequence
    dbias, dsinks  as bias, sinks; written, summed over the axes that are 1`,
		Examples: []string{
			"bench --batch 2 --heads 8 --kv-heads 4 --seqlen 1024 --headdim 128 --dtype bfloat16 --causal",
			"bench --seqlen 16384 --causal --window 512,0 --sinks",
			"bench --seqlen 1 --seqlen-kv 16384 --impl coopmat2,scalar --format csv",
			`bench --suite throughput --peer torch="python3 tools/peers/torch_sdpa.py"`,
			"bench --format benchfmt > new.txt && benchstat -col /impl new.txt",
			"run --in qkv.safetensors --out o.safetensors",
			"run --in qkv.safetensors --out o.safetensors --causal --causal-align top-left --scale 0.1",
			"run --in qkv.safetensors --out o.safetensors --window 512,0 --softcap 30 --dropout 0.1 --seed 7",
			"run --in qkv-do.safetensors --out gradients.safetensors --backward --causal",
			"sweep --seqlen 512..16384x2 --headdim 64,128 --causal --csv attention.csv",
			"tune --headdim 64,128 --dtype float16,bfloat16 --seqlen 512,4096 --budget 2m",
			"tune --backward --headdim 64 --dtype bfloat16 --causal",
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
		name: "attention", describe: describeAttention, keys: attentionKeys, check: (*attending).prepare, tensors: attentionTensors,
		flags: []flag{
			{name: "batch", usage: "number of sequences", size: true},
			{name: "heads", field: "num_heads", usage: "query heads", size: true},
			{name: "kv-heads", field: "num_kv_heads", usage: "key and value heads, a divisor of heads (default: heads)", size: true},
			{name: "seqlen", field: "seq_q", usage: "queries per sequence", size: true},
			{name: "seqlen-kv", field: "seq_kv", usage: "keys per sequence (default: seqlen)", size: true},
			{name: "headdim", field: "head_dim", usage: "elements of a head, a multiple of 8 up to 256", size: true},
			{name: "dtype", usage: "float16 (default), bfloat16 or float32", size: true},
			{name: "layout", field: "order", file: true, value: parsed(OneOf([]string{layoutBHSD, layoutBSHD}), "ORDER"),
				usage: "order of axes of q, k, v, o and their gradients in files: bhsd (default), or bshd, (batch, seq, heads, headdim), as in flash-attn"},
			{name: "causal", usage: "hide the keys after each query"},
			{name: "causal-align", usage: "corner that the causal mask, the window and ALiBi are aligned to: bottom-right (default) or top-left", value: parsed(parseAlign, "CORNER")},
			{name: "scale", usage: "factor of the scores (default 1/√headdim)"},
			{name: "window", usage: "hide keys more than L before or R after each query's own; -1 is unlimited", value: parsed(parseWindow, "L,R")},
			{name: "softcap", usage: "replace each score x by F*tanh(x/F)"},
			{name: "dropout", field: "drop", usage: "drop each weight with probability P; needs --seed", value: parsed(ParseFloat, "P")},
			{name: "seed", field: "drop_seed", usage: "seed of the dropout", value: parsed(parseSeed, intKind)},
			{name: "value-dim", usage: "elements of a head of V and O (default: headdim)", size: true},
			{name: "alibi", usage: "subtract slope*distance, with slopes for heads (the value if none is given) or batch-heads", size: true, value: parsed(parseALiBi, "SLOPES"), unsaid: attention.ALiBiPerHead.String()},
			{name: "bias", usage: "add a bias with these axes beside the keys: a comma list of batch, heads, rows; or shared, by all of them", size: true, value: parsed(parseBias, "AXES")},
			{name: "bias-dtype", usage: "type of the bias: float32 (default) or that of --dtype", size: true},
			{name: "key-mask", usage: "hide one key in eight from all queries of a batch, at random", size: true},
			{name: "sinks", usage: "give each head a sink", size: true},
			{name: "varlen", field: "packed", usage: "pack sequences of seqlen, 3/4, 1/2 and 1/4 of it, and again", size: true},
			{name: "config", field: "chosen", usage: "how work is divided, in the words of the column runs of the pass, instead of the choice of flashvk", size: true, value: parsed(parseAttentionConfig, "CONFIG")},
		},
		base: newAttending,
		path: (*attending).on,
		sample: func(a *attending) int {
			return max(int(checkOperations/(4*float64(a.SeqKV)*float64(a.HeadDim+a.ValueHeadDim()))), minCheckRows)
		},
		tune: tuneAttention,
	}
}

const (
	// checkOperations is how many operations a reference may take: some seconds at most on a few
	// cores.
	checkOperations = 2e9
	// minCheckRows are compared even if they take more.
	minCheckRows = 32
	// maxPacked bounds the sequences of --varlen.
	maxPacked = 1 << 20
)

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

func parseALiBi(text string) (attention.ALiBi, error) {
	for _, a := range []attention.ALiBi{attention.ALiBiPerHead, attention.ALiBiPerBatchHead} {
		if text == a.String() {
			return a, nil
		}
	}
	return 0, enum.NotOneOf{attention.ALiBiPerHead.String(), attention.ALiBiPerBatchHead.String()}
}

func parseBias(text string) (attention.Bias, error) {
	b := attention.Bias{On: true}
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
}

func parseAlign(text string) (attention.Align, error) {
	a, err := attention.ParseAlign(text)
	if err != nil {
		return 0, enum.NotOneOf{"bottom-right", "top-left"}
	}
	return a, nil
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

// attentionFlags are the flags of all commands.
type attentionFlags struct{ *callFlags[*attending] }

// FromFlags implements Flags.
func (f *attentionFlags) FromFlags(cpu bool) (bench.Op, error) {
	a := f.base(cpu)
	f.change(a, true)
	if f.set.Changed("heads") && !f.set.Changed("kv-heads") {
		a.NumKVHeads = a.NumHeads
	}
	if f.set.Changed("seqlen") && !f.set.Changed("seqlen-kv") {
		a.SeqKV = a.SeqQ
	}
	if err := f.contradiction(a); err != nil {
		return nil, err
	}
	if f.set.Lookup("batch") == nil { // the alignment may be that of ALiBi, which a file has as a tensor
		a.CausalAlign = attention.BottomRight
	} else if err := f.misaligned(a); err != nil {
		return nil, err
	}
	return f.valid(a, true)
}

// contradiction returns an error if flags contradict each other. It sets the dropout.
func (f *attentionFlags) contradiction(a *attending) error {
	given := f.set.Changed
	a.Dropout = attention.Dropout{P: a.Drop, Seeded: given("seed"), Seed: a.DropSeed}
	switch {
	case a.Drop != 0 && !given("seed"):
		return fmt.Errorf("--dropout %v needs --seed", a.Drop)
	case given("seed") && !given("dropout"):
		return fmt.Errorf("--seed %d needs --dropout", a.DropSeed)
	case given("scale") && a.Scale == 0:
		return fmt.Errorf("--scale 0 is not possible; leave it out for the default, 1/√headdim")
	case given("softcap") && a.Softcap == 0:
		return fmt.Errorf("--softcap 0 is not possible; leave it out for none")
	case given("value-dim") && a.ValueDim == 0: // 0 would mean headdim
		return fmt.Errorf("--value-dim 0 is not positive")
	case given("bias-dtype") && !a.Bias.On:
		return fmt.Errorf("--bias-dtype %v needs --bias", a.BiasDType)
	case a.Packed && a.Batch > maxPacked:
		return fmt.Errorf("--varlen with --batch %d is more than %d sequences", a.Batch, maxPacked)
	}
	return nil
}

// misaligned returns an error if --causal-align is given and nothing is aligned.
func (f *attentionFlags) misaligned(a *attending) error {
	if f.set.Changed("causal-align") && !a.Causal && !a.Window.On && a.ALiBi == attention.ALiBiOff {
		return fmt.Errorf("--causal-align %v needs --causal, --window or ALiBi's slopes", a.CausalAlign)
	}
	return nil
}

// Suite implements Flags.
func (f *attentionFlags) Suite(small bool) []bench.Op {
	s, err := bench.ParseSuite(bench.TrainingSuite)
	if err == nil {
		var list []bench.Op
		if _, list, err = f.cases(*s, small); err == nil {
			return list
		}
	}
	panic(err) // of constants
}

// Suites implements Suited.
func (f *attentionFlags) Suites() []bench.Suite { return bench.Suites() }

// Cases implements Suited.
func (f *attentionFlags) Cases(s bench.Suite, small bool) (*bench.Suite, []bench.Op, error) {
	if f.set.Changed("dtype") {
		typed, err := s.Retype(f.given.DType)
		if err != nil {
			return nil, nil, fmt.Errorf("--dtype %v: %w", f.given.DType, err)
		}
		s = *typed
	}
	return f.cases(s, small)
}

func (f *attentionFlags) cases(s bench.Suite, small bool) (*bench.Suite, []bench.Op, error) {
	if small {
		s = s.Small()
	}
	var list []bench.Op
	for _, p := range s.Problems {
		op, err := Attention(p)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, op)
	}
	return &s, list, nil
}
