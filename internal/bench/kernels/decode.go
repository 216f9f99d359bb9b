package kernels

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/enum"
)

// decoding is the row of decode.
func decoding() Kernel {
	return Kernel{
		Name: "decode", Title: "attention with a cache of keys and values", How: []string{"layout"},
		Impls: []string{attention.Auto.String(), attention.CoopMat.String(), attention.Scalar.String()},
		Bench: Help{
			Long: `Measures attention of the last queries of sequences with a cache of keys and values, on
random normal inputs, after checking sampled rows against a float64 reference. The device
reads the lengths of the sequences. The calls rotate through several caches, which together
are larger than the device's own caches.

The rate of reading keys and values counts most. K and V are the bytes of keys and values
that some query sees; traffic adds q, o and tables. The share of a copy is the rate of K and
V divided by that of a copy kernel in the same run, reads and writes counted. A query is a
token.

With --page-size the cache has pages in random order.

--part also measures what surrounds a call, each in its own table. append puts a key for
each query and head into the cache, and rotates keys and queries (by angles of 0, so that
calls can be repeated). step is append and decode, in one kernel where that is faster: the
column runs then ends in append, and a --config with or without it forces either. --steps N
makes N of them in a row, each with the keys of those before. prefill is append and attention
of a prompt as long as --keys. The time per token is the time of a call divided by its tokens.
A replayed call is recorded once, a recorded one each time.`,
			Example: `  flashvk bench decode
  flashvk bench decode --batch 1 --keys 4096 --part prefill,append,step,decode
  flashvk bench decode --batch 16 --keys 4096 --part step --steps 64
  flashvk bench decode --batch 16 --heads 32 --kv-heads 8 --keys 4096 --headdim 128 --dtype bfloat16
  flashvk bench decode --batch 64 --keys 100..16000 --page-size 16
  flashvk bench decode --queries 4 --keys 16384 --window 512,0 --sinks
  flashvk bench decode --suite decode --out results
  flashvk bench decode --suite decode --peer torch="python3 tools/peers/torch_decode.py"`,
		},
		Run: Help{
			Long: `Computes attention of the last queries of sequences with a cache of keys and values,
O = softmax(scale * Q * Kᵀ) * V, on a Vulkan device.

The input file holds the tensors
    q            (batch, heads, queries, headdim), F16, BF16 or F32
    k_cache      (batch, max_keys, kv-heads, headdim), as q, or in 8 bits
    v_cache      (batch, max_keys, kv-heads, valuedim), as k_cache
    seq_lens     (batch), I32: the keys of each sequence
or, where the cache is in pages,
    k_cache      (pages, page, kv-heads, headdim), page a power of two from 8 on
    v_cache      (pages, page, kv-heads, valuedim)
    block_table  (batch, max_pages), I32: the pages of each sequence, in order;
                 entries beyond its keys may be anything
A cache in 8 bits has
    k_cache      F8_E4M3, and k_scale and v_scale (kv-heads), F32: an element is multiplied
                 by the scale of its head; both may be missing
or  k_cache      I8, and k_scale and v_scale (batch, max_keys, kv-heads, headdim/32 or
                 valuedim/32), F16, or likewise with pages: q8_0
with q in 16 bits.
Heads is a multiple of kv-heads, headdim and valuedim are multiples of 8 up to
256, and there are at most 64 queries. With --layout hnd the kv-heads of a cache come
before its keys. The output file gets
    o            (batch, heads, queries, valuedim), in the format of q
    lse          (batch, heads, queries), F32: log(sum(exp(scores))) of each row

The queries are at the last positions: in a sequence with n keys, new ones included,
query i sees the keys 0 to n-queries+i, or with --causal=false all of them. A row that
sees no key has o = 0 and lse = -Inf, or its sink. The output file appears only when it
is complete.

The input file may hold
    k_new            (batch, kv-heads, new, headdim), as q: keys that are first appended to
    v_new            (batch, kv-heads, new, valuedim)  those that seq_lens counts; the output
                     file also gets k_cache and v_cache, and the scales of q8_0
    tree_mask        (batch, queries, 2), I32: instead of the causal mask, a word of 64 bits,
                     the low half first, whose bit j says that query i sees key n-queries+j
    cache_batch_idx  (batch), I32: the row of a cache without pages that has the keys of
                     each sequence; the cache may then have any number of rows
    left_pad         (batch), I32: the number of first keys of each sequence that are hidden
    bias             (batch or 1, heads or 1, queries or 1, max_keys), F32 or as q;
                     with pages max_keys is max_pages*page
    alibi_slopes     (heads) or (batch, heads), F32: slope*distance is subtracted
    sinks            (heads), F32: one more term of the sum and of lse`,
			Example: `  flashvk run decode --in step.safetensors --out o.safetensors
  flashvk run decode --in step.safetensors --out o.safetensors --window 512,0 --softcap 30 --impl scalar`,
		},
		Tiny: []string{"batch=1", "heads=1", "keys=16", "headdim=64"}, Sweep: "--keys 1024..65536x4 --batch 1,16",
		Tune: &Tune{
			Help: Help{
				Long: `Tries rows, subgroups and numbers of workgroups of decoding on this device: each is
compiled, checked against a float64 reference and only then timed; the best few are timed
again, taking turns. A candidate that does not compile, is wrong or does not come back is
reported and dropped.`,
				Example: `  flashvk tune decode --batch 1,16,64 --keys 4096
  flashvk tune decode --dry-run --impl scalar`,
			},
			Impls: []string{attention.CoopMat.String(), attention.Scalar.String()},
		},
		New: func() Flags { return &decodeFlags{} },
	}
}

// maxSteps bounds the steps of a call. Each step is three dispatches.
const maxSteps = 1000

func parseDecodePart(text string) (decodePart, error) {
	for _, part := range []decodePart{readPart, appendPart, stepPart, prefillPart} {
		if text == string(part) {
			return part, nil
		}
	}
	return "", enum.NotOneOf{string(readPart), string(appendPart), string(stepPart), string(prefillPart)}
}

// The orders of the axes of a cache.
const (
	layoutNHD = "nhd"
	layoutHND = "hnd"
)

// decodeFlags are the flags of all commands.
type decodeFlags struct {
	score                                             scoreFlags
	layout                                            string
	batch, heads, kvHeads, queries, headDim, valueDim int
	pageSize                                          int
	keys                                              keyCounts
	cache                                             attention.CacheFormat
	dtype                                             dtype.DType
	alibi                                             attention.ALiBi
	sinks                                             bool
	parts                                             []decodePart
	steps                                             int
	config                                            *attention.DecodeConfig
	set                                               *pflag.FlagSet
}

// Add implements Flags.
func (d *decodeFlags) Add(f *pflag.FlagSet, sizes bool) {
	d.set, d.score.causal, d.layout, d.parts, d.steps = f, true, layoutNHD, []decodePart{readPart}, 1
	if sizes {
		IntVar(f, &d.batch, "batch", "number of sequences (default 16 on a GPU, 2 on a CPU device)")
		IntVar(f, &d.heads, "heads", "query heads (default 32, or 4)")
		IntVar(f, &d.kvHeads, "kv-heads", "key and value heads, a divisor of heads (default: a quarter of heads if that is one, else heads)")
		f.Var(Value[keyCounts]{&d.keys, parseKeys, intKind}, "keys", "keys of each sequence; FIRST..LAST are sequences of different lengths (default 4096, or 300)")
		IntVar(f, &d.queries, "queries", "queries of each sequence, the last ones (default 1)")
		IntVar(f, &d.headDim, "headdim", "elements of a head, a multiple of 8 up to 256 (default 128, or 64)")
		IntVar(f, &d.valueDim, "value-dim", "elements of a head of V and O (default: headdim)")
		DTypeVar(f, &d.dtype, "dtype", "float16, bfloat16 (default on a GPU) or float32")
		f.Var(Value[attention.CacheFormat]{&d.cache, parseCacheFormat, "FORMAT"}, "cache-dtype", "what the cache stores: same (default) as --dtype, e4m3 or q8_0 in 8 bits")
		IntVar(f, &d.pageSize, "page-size", "keys of a page, a power of two from 8 on; 0 (default) is a cache without pages")
	}
	if sizes {
		f.Var(Value[[]decodePart]{&d.parts, ListOf(parseDecodePart), "PARTS"}, "part", "what a call is, a comma list of decode (default), append, step (both), prefill (append of a prompt of --keys, and its attention)")
		IntVar(f, &d.steps, "steps", "steps of a call of --part step, one after the other (default 1)")
	}
	f.Var(Value[string]{&d.layout, OneOf([]string{layoutNHD, layoutHND}), "ORDER"}, "layout", "axes of the cache: nhd (default) has keys before heads, hnd heads before keys")
	BoolVar(f, &d.score.causal, "causal", "hide the keys after each query (default true)")
	d.score.add(f)
	if sizes {
		f.Var(Value[attention.ALiBi]{&d.alibi, parseALiBi, "SLOPES"}, "alibi", "subtract slope*distance, with slopes for heads (the value if none is given) or batch-heads")
		f.Lookup("alibi").NoOptDefVal = attention.ALiBiPerHead.String()
		BoolVar(f, &d.sinks, "sinks", "give each head a sink")
		f.Var(Value[*attention.DecodeConfig]{&d.config, parseDecodeConfig, "CONFIG"}, "config", "how work is divided, in the words of the column runs, instead of the choice of flashvk")
	}
}

func parseDecodeConfig(text string) (*attention.DecodeConfig, error) {
	c, err := attention.ParseDecodeConfig(text)
	return &c, err
}

// Several implements Multiple: a problem for each part.
func (d *decodeFlags) Several(cpu bool) ([]bench.Op, error) {
	if d.steps < 1 || d.steps > maxSteps {
		return nil, fmt.Errorf("--steps %d is not in 1..%d", d.steps, maxSteps)
	}
	if d.steps > 1 && !slices.Contains(d.parts, stepPart) {
		return nil, fmt.Errorf("--steps needs --part %s", stepPart)
	}
	var p attention.DecodeProblem
	if err := d.score.apply(&p.Problem); err != nil {
		return nil, err
	}
	p.Batch, p.NumHeads, p.SeqQ, p.HeadDim, p.DType = 16, 32, 1, 128, dtype.BFloat16
	keys := sameKeys(4096)
	if cpu {
		p.Batch, p.NumHeads, p.HeadDim, p.DType = 2, 4, 64, dtype.Float16
		keys = sameKeys(300)
	}
	setGiven(d.set, []sizeFlag{
		{"batch", &p.Batch, &d.batch}, {"heads", &p.NumHeads, &d.heads}, {"queries", &p.SeqQ, &d.queries}, {"headdim", &p.HeadDim, &d.headDim},
		{"page-size", &p.PageSize, &d.pageSize},
	})
	if p.NumKVHeads = p.NumHeads; p.NumHeads%4 == 0 {
		p.NumKVHeads /= 4
	}
	setGiven(d.set, []sizeFlag{{"kv-heads", &p.NumKVHeads, &d.kvHeads}, {"value-dim", &p.ValueDim, &d.valueDim}})
	if d.set.Changed("value-dim") && d.valueDim == 0 { // 0 would mean headdim
		return nil, fmt.Errorf("--value-dim 0 is not positive")
	}
	if d.set.Changed("dtype") {
		p.DType = d.dtype
	}
	if d.set.Changed("keys") {
		keys = d.keys
	}
	p.ALiBi, p.Sinks, p.Cache = d.alibi, d.sinks, d.cache
	var list []bench.Op
	for _, part := range d.parts {
		if part == prefillPart {
			o, err := newPrefillOp(p, keys, d.layout == layoutHND)
			if err != nil {
				return nil, err
			}
			list = append(list, o)
			continue
		}
		steps := 1
		if part == stepPart {
			steps = d.steps
		}
		o, err := newDecodeOp(p, keys, d.layout == layoutHND, part, steps)
		if err != nil {
			return nil, err
		}
		o.config = d.config
		list = append(list, o)
	}
	return list, nil
}

// FromFlags implements Flags.
func (d *decodeFlags) FromFlags(cpu bool) (bench.Op, error) {
	list, err := d.Several(cpu)
	if err != nil {
		return nil, err
	}
	if len(list) > 1 {
		return nil, fmt.Errorf("--part: %d parts where one is measured", len(list))
	}
	return list[0], nil
}

// Suite implements Flags.
func (d *decodeFlags) Suite(small bool) []bench.Op {
	var list []bench.Op
	for _, c := range decodeCases() {
		if small {
			c = c.small()
		}
		o, err := newDecodeOp(c.p, c.keys, d.layout == layoutHND, readPart, 1)
		if err != nil {
			panic(err) // of constants
		}
		list = append(list, o)
	}
	return list
}

// Suites implements Suited.
func (d *decodeFlags) Suites() []bench.Suite {
	return []bench.Suite{{Name: "decode", About: "bfloat16, headdim 128, heads 32 of 8 where nothing else is said: caches of lengths, pages and features that serving has"}}
}

// Cases implements Suited.
func (d *decodeFlags) Cases(s bench.Suite, small bool) (*bench.Suite, []bench.Op, error) {
	if small {
		s = s.Small()
	}
	return &s, d.Suite(small), nil
}

// A decodeCase is one of the suite.
type decodeCase struct {
	p    attention.DecodeProblem
	keys keyCounts
}

// decodeCases returns the cases of the suite: batches and lengths, heads, several queries, head
// dimensions, pages, features, and lengths that differ.
func decodeCases() []decodeCase {
	plain := attention.DecodeProblem{Problem: attention.Problem{NumHeads: 32, NumKVHeads: 8, SeqQ: 1, HeadDim: 128, DType: dtype.BFloat16, Causal: true}}
	var list []decodeCase
	add := func(batch, keys int, change ...func(p *attention.DecodeProblem)) {
		c := decodeCase{plain, sameKeys(keys)}
		c.p.Batch = batch
		for _, f := range change {
			f(&c.p)
		}
		list = append(list, c)
	}
	for _, keys := range []int{1024, 4096, 16384, 65536} {
		add(1, keys)
	}
	add(1, 16384, func(p *attention.DecodeProblem) { p.NumKVHeads = 32 })
	for _, keys := range []int{1024, 4096, 16384} {
		add(16, keys)
	}
	add(16, 4096, func(p *attention.DecodeProblem) { p.NumKVHeads = 32 })
	add(64, 1024)
	add(64, 4096)
	for _, batch := range []int{1, 16} {
		for _, n := range []int{4, 8} {
			add(batch, 65536/max(batch, 4), func(p *attention.DecodeProblem) { p.SeqQ = n })
		}
	}
	for _, n := range []int{64, 96, 256} {
		add(16, 4096, func(p *attention.DecodeProblem) { p.HeadDim = n })
	}
	for _, batch := range []int{16, 64} {
		add(batch, 4096, func(p *attention.DecodeProblem) { p.PageSize = 16 })
	}
	add(64, 4096, func(p *attention.DecodeProblem) { p.Window = attention.Window{On: true, Left: 511} })
	add(16, 4096, func(p *attention.DecodeProblem) { p.Softcap = 30 })
	add(16, 4096, func(p *attention.DecodeProblem) { p.Sinks = true })
	add(16, 4096, func(p *attention.DecodeProblem) { p.ALiBi = attention.ALiBiPerHead })
	add(64, 0, func(p *attention.DecodeProblem) { p.PageSize = 16 })
	list[len(list)-1].keys = keyCounts{text: "100..16000", first: 100, last: 16000}
	return list
}

// small returns a smaller case of the same kind, for a CPU device.
func (c decodeCase) small() decodeCase {
	c.p.DType = dtype.Float16
	c.p.NumHeads, c.p.NumKVHeads = c.p.NumHeads/8, c.p.NumKVHeads/8
	c.p.Batch = max(c.p.Batch/8, 1)
	if c.p.Window.On {
		c.p.Window.Left /= 32
	}
	c.keys.list = slices.Clone(c.keys.list)
	for i := range c.keys.list {
		c.keys.list[i] /= 32
	}
	c.keys.first, c.keys.last = c.keys.first/32, c.keys.last/32
	if c.keys.text = fmt.Sprintf("%d..%d", c.keys.first, c.keys.last); len(c.keys.list) > 0 {
		c.keys.text = fmt.Sprint(c.keys.list[0])
	}
	return c
}
