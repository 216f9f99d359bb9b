package kernels

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
)

// softmaxAttention is the row of attention.
func softmaxAttention() Kernel {
	impls := []string{attention.Auto.String()}
	for _, i := range attention.Impls() {
		impls = append(impls, i.String())
	}
	return Kernel{
		Name: "attention", Title: "softmax attention", Impls: impls, AllPaths: true, How: []string{"dtype"},
		Bench: Help{
			Long: `Measures softmax attention on random normal inputs: the forward pass, the
backward pass with --backward, or one after the other with --both. Every path is
checked against a float64 reference first (on sampled rows if there are many);
one that is wrong is reported and not timed, and the exit status is 1.

Times are device timestamps: the median of --count samples, each the mean of a
batch of calls, the paths taking turns. Rates count 4*batch*heads*entries*headdim
operations, with entries the unmasked pairs of query and key, and 2.5 times as many for
the backward pass.

Default sizes: batch 4, heads 16, seqlen 4096, headdim 128 on a GPU;
batch 1, heads 4, kv-heads 2, seqlen 256, headdim 64 on a CPU device. The format
benchfmt has a line per sample, for benchstat.

The suites are
` + strings.TrimSuffix(describeSuites(), "\n"),
			Example: `  flashvk bench attention
  flashvk bench attention --batch 2 --heads 8 --kv-heads 4 --seqlen 1024 --headdim 128 --dtype bfloat16 --causal
  flashvk bench attention --seqlen 16384 --causal --window 512,0 --sinks
  flashvk bench attention --seqlen 1024 --headdim 64 --causal --backward --impl auto
  flashvk bench attention --seqlen 1 --seqlen-kv 16384 --impl coopmat2,scalar --format csv
  flashvk bench attention --suite length --format markdown
  flashvk bench attention --suite throughput --out results
  flashvk bench attention --suite throughput --peer torch="python3 tools/peers/torch_sdpa.py"
  flashvk bench attention --format benchfmt > new.txt && benchstat -col /impl new.txt`,
		},
		Run: Help{
			Long: `Computes softmax attention, O = softmax(scale * Q * Kᵀ) * V, on a Vulkan device.

The input file holds the tensors
    q     (batch, heads, seq_q, headdim)
    k     (batch, kv-heads, seq_kv, headdim)
    v     (batch, kv-heads, seq_kv, valuedim)
all of one format, F16, BF16 or F32; heads is a multiple of kv-heads, headdim and
valuedim are multiples of 8 up to 256. The output file gets
    o     (batch, heads, seq_q, valuedim), in the format of q
    lse   (batch, heads, seq_q), F32: log(sum(exp(scores))) of each row
A row that sees no key has o = 0 and lse = -Inf, or its sink. The output file
appears only when it is complete. With --layout bshd q, k, v, o and their
gradients are (batch, seq, heads, headdim) in both files, as flash-attn has them;
other tensors and packed sequences stay as they are.

The input file may hold tensors that change the scores
x = softcap(scale*q*k) + bias - slope*|i+shift-j|, where shift is seq_kv - seq_q,
or 0 with --causal-align top-left:
    bias           (batch or 1, heads or 1, seq_q or 1, seq_kv), F32 or as q
    alibi_slopes   (heads) or (batch, heads), F32
    key_mask       (batch, seq_kv), BOOL: true is visible
    sinks          (heads), F32: one more term of the sum and of lse
    cu_seqlens_q   (batch+1), I32: the first row of each sequence in q, then
    cu_seqlens_kv  (batch+1)       packed as (total, heads, headdim); likewise in k, v
With cu_seqlens o is also packed, and lse is (heads, total); seq_q and seq_kv of
the other tensors are the longest lengths. Rows after the last sequence have
o = 0 and lse = -Inf.

With --backward the input file also holds the gradient of a loss by o,
    do    the shape and format of o
    dlse  the shape of lse, F32: its gradient by lse; may be missing
and the output file also gets the loss's gradients by the inputs,
    dq, dk, dv  the shapes and formats of q, k, v
    dbias       likewise, if there is a bias: summed over the axes that are 1
    dsinks      likewise, if there are sinks
Rows and keys in no sequence have 0.`,
			Example: `  flashvk run attention --in qkv.safetensors --out o.safetensors
  flashvk run attention --in qkv.safetensors --out o.safetensors --causal --impl scalar
  flashvk run attention --in flash-attn.safetensors --out o.safetensors --layout bshd
  flashvk run attention --in qkv.safetensors --out o.safetensors --causal --causal-align top-left --scale 0.1
  flashvk run attention --in qkv.safetensors --out o.safetensors --window 512,0 --softcap 30 --dropout 0.1 --seed 7
  flashvk run attention --in qkv-do.safetensors --out gradients.safetensors --backward --causal`,
		},
		Tiny: []string{"batch=1", "heads=1", "seqlen=16", "headdim=64"}, Sweep: "--seqlen 512..16384x2 --headdim 64,128 --causal",
		Tune: &Tune{
			Help: Help{
				Long: `Tries tile sizes and arrangements of softmax attention on this device, of the forward
pass or with --backward of the backward pass.

Default sizes are those of bench attention, but headdim is 64 and 128 (64 on a CPU device)
and causal is both.`,
				Example: `  flashvk tune attention
  flashvk tune attention --headdim 64,128 --dtype float16,bfloat16 --seqlen 512,4096 --budget 2m
  flashvk tune attention --batch 1 --heads 8 --seqlen 512 --headdim 64 --causal=false --out tuning.json
  flashvk tune attention --backward --headdim 64 --dtype bfloat16 --causal
  flashvk tune attention --dry-run --impl scalar`,
			},
			Table: "attention/fwd_table.go or bwd_table.go", Impls: []string{"coopmat2", "coopmat", "scalar"},
			Unless: func(cpu bool) []string {
				if cpu {
					return []string{"headdim=64", "causal=both", "heads=4"}
				}
				return []string{"headdim=64,128", "causal=both"}
			},
		},
		New: func() Flags { return &attentionFlags{} },
	}
}

// describeSuites returns the lines of help that say what each suite measures.
func describeSuites() string {
	var b strings.Builder
	for _, s := range bench.Suites() {
		fmt.Fprintf(&b, "    %-12s %s\n", s.Name, s.About)
	}
	return b.String()
}

// attentionFlags are the flags of all commands.
type attentionFlags struct {
	set                                         *pflag.FlagSet
	batch, heads, kvHeads, seqQ, seqKV, headDim int
	dtype                                       dtype.DType
	sizes                                       bool // the flags of sizes were added
	mask                                        maskFlags
	layout                                      layoutFlag // of files
	features                                    featureFlags
	config                                      any // of either pass
}

// Add implements Flags.
func (a *attentionFlags) Add(f *pflag.FlagSet, sizes bool) {
	a.set, a.sizes = f, sizes
	if !sizes {
		a.layout.add(f)
		a.mask.add(f)
		return
	}
	IntVar(f, &a.batch, "batch", "number of sequences")
	IntVar(f, &a.heads, "heads", "query heads")
	IntVar(f, &a.kvHeads, "kv-heads", "key and value heads, a divisor of heads (default: heads)")
	IntVar(f, &a.seqQ, "seqlen", "queries per sequence")
	IntVar(f, &a.seqKV, "seqlen-kv", "keys per sequence (default: seqlen)")
	IntVar(f, &a.headDim, "headdim", "elements of a head, a multiple of 8 up to 256")
	DTypeVar(f, &a.dtype, "dtype", "float16 (default), bfloat16 or float32")
	a.mask.add(f)
	a.features.add(f)
	f.Var(Value[any]{&a.config, parseAttentionConfig, "CONFIG"}, "config", "how work is divided, in the words of the column runs of the pass, instead of the choice of flashvk")
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

// gpuDefault and cpuDefault are the problems that sizes are taken from if their flags are not
// given. The first fills a large GPU; a CPU device computes the second in well under a second.
func gpuDefault() attention.Problem {
	return attention.Problem{Batch: 4, NumHeads: 16, NumKVHeads: 16, SeqQ: 4096, SeqKV: 4096, HeadDim: 128, DType: dtype.Float16}
}

func cpuDefault() attention.Problem {
	return attention.Problem{Batch: 1, NumHeads: 4, NumKVHeads: 2, SeqQ: 256, SeqKV: 256, HeadDim: 64, DType: dtype.Float16}
}

// FromFlags implements Flags.
func (a *attentionFlags) FromFlags(cpu bool) (bench.Op, error) {
	p := gpuDefault()
	if cpu {
		p = cpuDefault()
	}
	if a.set.Changed("heads") {
		p.NumHeads, p.NumKVHeads = a.heads, a.heads
	}
	if a.set.Changed("seqlen") {
		p.SeqQ, p.SeqKV = a.seqQ, a.seqQ
	}
	for _, f := range []struct {
		name   string
		target *int
		n      int
	}{{"batch", &p.Batch, a.batch}, {"kv-heads", &p.NumKVHeads, a.kvHeads}, {"seqlen-kv", &p.SeqKV, a.seqKV}, {"headdim", &p.HeadDim, a.headDim}} {
		if a.set.Changed(f.name) {
			*f.target = f.n
		}
	}
	if a.set.Changed("dtype") {
		p.DType = a.dtype
	}
	if err := a.mask.apply(&p); err != nil {
		return nil, err
	}
	if !a.sizes { // the alignment may be that of ALiBi, which a file has as a tensor
		p.CausalAlign = attention.BottomRight
		return bench.NewAttention(p)
	}
	if err := a.features.apply(&p); err != nil {
		return nil, err
	}
	if err := a.mask.checkAlign(&p); err != nil {
		return nil, err
	}
	op, err := bench.NewAttention(p)
	if err == nil && a.config != nil {
		op = op.UseConfig(a.config)
	}
	return op, err
}

// Suite implements Flags.
func (a *attentionFlags) Suite(small bool) []bench.Op {
	s, err := bench.ParseSuite(bench.TrainingSuite)
	if err == nil {
		var list []bench.Op
		if _, list, err = a.cases(*s, small); err == nil {
			return list
		}
	}
	panic(err) // of constants
}

// Suites implements Suited.
func (a *attentionFlags) Suites() []bench.Suite { return bench.Suites() }

// Cases implements Suited.
func (a *attentionFlags) Cases(s bench.Suite, small bool) (*bench.Suite, []bench.Op, error) {
	if a.set.Changed("dtype") {
		typed, err := s.Retype(a.dtype)
		if err != nil {
			return nil, nil, fmt.Errorf("--dtype %v: %w", a.dtype, err)
		}
		s = *typed
	}
	return a.cases(s, small)
}

func (a *attentionFlags) cases(s bench.Suite, small bool) (*bench.Suite, []bench.Op, error) {
	if small {
		s = s.Small()
	}
	var list []bench.Op
	for _, p := range s.Problems {
		op, err := bench.NewAttention(p)
		if err != nil {
			return nil, nil, err
		}
		list = append(list, op)
	}
	return &s, list, nil
}
