package kernels

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
)

// decoder is the row of decode.
func decoder() Kernel {
	impls := []string{attention.Auto.String(), attention.CoopMat.String(), attention.Scalar.String()}
	return Kernel{
		Name: "decode", Title: "attention with a cache of keys and values", How: []string{"layout"}, Impls: impls,
		New: func() Flags { return &decodeFlags{decodeCalls().New().(*callFlags[*decoding])} },
		Formulas: `
    o = softmax(scale * q * kᵀ) * v
The queries are at the last positions: in a sequence with n keys, new ones included, query i
sees the keys 0 to n-queries+i, or with --causal=false all of them.`,
		About: `The device reads the lengths of sequences. Calls rotate through several caches, which together
are larger than the device's own caches. The rate of reading keys and values counts most: K and
V are the bytes of those that some query sees; traffic adds q, o and tables; the share of a copy
is that rate divided by the rate of a copy kernel in the same run. A query is a token. With
--page-size the cache has pages in random order.

--part also measures what surrounds a call, each in its own table. append puts a key for each
query and head into the cache, and rotates keys and queries (by angles of 0, so that calls can be
repeated). step is append and decode, in one kernel where that is faster: the column runs then
ends in append, and a --config with or without it forces either. --steps N makes N of them in a
row, each with the keys of those before. prefill is append and attention of a prompt as long as
--keys. A replayed call is recorded once, a recorded one each time.`,
		Files: `
    q            (batch, heads, queries, headdim), F16, BF16 or F32; at most 64 queries
    k_cache      (batch, max_keys, kv-heads, headdim), as q, or in 8 bits if q has 16
    v_cache      (batch, max_keys, kv-heads, valuedim), as k_cache
    seq_lens     (batch), I32: the keys of each sequence
    o            (batch, heads, queries, valuedim), as q; written
    lse          (batch, heads, queries), F32: log(sum(exp(scores))) of each row; written
or, where the cache is in pages,
    k_cache      (pages, page, kv-heads, headdim), page a power of two from 8 on; v_cache likewise
    block_table  (batch, max_pages), I32: the pages of each sequence, in order;
                 entries beyond its keys may be anything
A cache in 8 bits has
    k_cache      F8_E4M3, and k_scale and v_scale (kv-heads), F32: an element is multiplied
                 by the scale of its head; both may be missing
or  k_cache      I8, and k_scale and v_scale, F16, as k_cache and v_cache but a number for each
                 32 elements of the last axis: q8_0
With --layout hnd the kv-heads of a cache come before its keys. A row that sees no key has o = 0
and lse = -Inf, or its sink. There may be
    k_new            (batch, kv-heads, new, headdim), as q: keys that are first appended to those
    v_new            (batch, kv-heads, new, valuedim)  that seq_lens counts; k_cache, v_cache and
                     the scales of q8_0 are then written, too
    tree_mask        (batch, queries, 2), I32: instead of the causal mask, a word of 64 bits,
                     the low half first, whose bit j says that query i sees key n-queries+j
    cache_batch_idx  (batch), I32: the row of a cache without pages that has the keys of
                     each sequence; the cache may then have any number of rows
    left_pad         (batch), I32: the number of first keys of each sequence that are hidden
    bias             (batch or 1, heads or 1, queries or 1, max_keys), F32 or as q;
                     with pages max_keys is max_pages*page
    alibi_slopes     (heads) or (batch, heads), F32: slope*distance is subtracted
    sinks            (heads), F32: one more term of the sum and of lse`,
		Examples: []string{
			"bench --batch 1 --keys 4096 --part prefill,append,step,decode",
			"bench --batch 16 --keys 4096 --part step --steps 64",
			"bench --batch 64 --keys 100..16000 --page-size 16",
			"bench --queries 4 --keys 16384 --window 512,0 --sinks",
			`bench --suite decode --peer torch="python3 tools/peers/torch_decode.py"`,
			"run --in step.safetensors --out o.safetensors",
			"run --in step.safetensors --out o.safetensors --window 512,0 --softcap 30 --impl scalar",
			"sweep --keys 1024..65536x4 --batch 1,16 --csv decode.csv",
			"tune --batch 1,16,64 --keys 4096",
		},
		Tiny: []string{"batch=1", "heads=1", "keys=16", "headdim=64"},
		Tune: &Tune{About: "It tries rows, subgroups and numbers of workgroups.", Impls: impls[1:]},
	}
}

// A decodePart is what of a generation a call is: Decode alone, which reads the cache; Append, which
// writes to it; Step, which does both; or prefill, Append of a prompt and its attention.
type decodePart string

// The parts.
const (
	readPart    decodePart = "decode"
	appendPart  decodePart = "append"
	stepPart    decodePart = "step"
	prefillPart decodePart = "prefill"
)

// The orders of the axes of a cache.
const (
	layoutNHD = "nhd"
	layoutHND = "hnd"
)

// maxSteps bounds the steps of a call. Each step is three dispatches.
const maxSteps = 1000

// decodeCalls are the calls that commands make.
func decodeCalls() *calls[*decoding] {
	parts := OneOf([]string{string(readPart), string(appendPart), string(stepPart), string(prefillPart)})
	return &calls[*decoding]{
		name: "decode", describe: describeDecode, keys: decodeKeys, check: (*decoding).prepare, tensors: decodeTensors,
		flags: []flag{
			{name: "batch", usage: "number of sequences (default 16 on a GPU, 2 on a CPU device)", size: true},
			{name: "heads", field: "num_heads", usage: "query heads (default 32, or 4)", size: true},
			{name: "kv-heads", field: "num_kv_heads", usage: "key and value heads, a divisor of heads (default: a quarter of heads if that is one, else heads)", size: true},
			{name: "keys", usage: "keys of each sequence; FIRST..LAST are sequences of different lengths (default 4096, or 300)", size: true, value: parsed(parseKeys, intKind)},
			{name: "queries", field: "seq_q", usage: "queries of each sequence, the last ones", size: true},
			{name: "headdim", field: "head_dim", usage: "elements of a head, a multiple of 8 up to 256 (default 128, or 64)", size: true},
			{name: "value-dim", usage: "elements of a head of V and O (default: headdim)", size: true},
			{name: "dtype", usage: "float16, bfloat16 (default on a GPU) or float32", size: true},
			{name: "cache-dtype", field: "cache", usage: "what the cache stores: same (default) as --dtype, e4m3 or q8_0 in 8 bits", size: true, value: parsed(parseCacheFormat, "FORMAT")},
			{name: "page-size", usage: "keys of a page, a power of two from 8 on; 0 (default) is a cache without pages", size: true},
			{
				name: "part", field: "parts", size: true, value: parsed(ListOf(func(text string) (decodePart, error) { part, err := parts(text); return decodePart(part), err }), "PARTS"),
				usage: "what a call is, a comma list of decode (default), append, step (both), prefill (append of a prompt of --keys, and its attention)",
			},
			{name: "steps", usage: "steps of a call of --part step, one after the other", size: true},
			{name: "layout", field: "order", usage: "axes of the cache: nhd (default) has keys before heads, hnd heads before keys", value: parsed(OneOf([]string{layoutNHD, layoutHND}), "ORDER")},
			{name: "causal", usage: "hide the keys after each query"},
			{name: "scale", usage: "factor of the scores (default 1/√headdim)"},
			{name: "window", usage: "hide keys more than L before or R after each query's own; -1 is unlimited", value: parsed(parseWindow, "L,R")},
			{name: "softcap", usage: "replace each score x by F*tanh(x/F)"},
			{name: "alibi", usage: "subtract slope*distance, with slopes for heads (the value if none is given) or batch-heads", size: true, value: parsed(parseALiBi, "SLOPES"), unsaid: attention.ALiBiPerHead.String()},
			{name: "sinks", usage: "give each head a sink", size: true},
			{name: "config", usage: "how work is divided, in the words of the column runs, instead of the choice of flashvk", size: true, value: parsed(parseDecodeConfig, "CONFIG")},
		},
		base: newDecoding,
		path: func(d *decoding, impl string, _ bench.Pass) (err error) {
			d.Impl, err = attention.ParseImpl(impl)
			return err
		},
		tune: tuneDecode,
	}
}

func parseDecodeConfig(text string) (*attention.DecodeConfig, error) {
	c, err := attention.ParseDecodeConfig(text)
	return &c, err
}

// parseCacheFormat reads --cache-dtype.
func parseCacheFormat(text string) (attention.CacheFormat, error) {
	f, err := attention.ParseCacheFormat(text)
	if err != nil {
		return 0, fmt.Errorf("not same, e4m3 or q8_0")
	}
	return f, nil
}

// tuneDecode has the configurations of Decode. With --config only that is compared with what flashvk
// chooses.
func tuneDecode(_ *vk.Caps, op tunedOp[*decoding], p bench.Pass) ([]bench.Tunable, error) {
	if op.c.Part != readPart {
		return nil, fmt.Errorf("decode: --part %s has no configurations of its own", op.c.Part)
	}
	x := bench.Tunable{Op: op, Pass: p, Space: *table.SpaceOf("decode", p.Kit(), op.c.DecodeProblem), With: func(c bench.Candidate) bench.Op {
		config := c.(attention.DecodeConfig)
		return op.with(func(d *decoding) { d.Config = &config })
	}}
	if op.c.Config != nil {
		onlyConfig(&x, *op.c.Config)
	}
	return []bench.Tunable{x}, nil
}

// decodeFlags are the flags of all commands.
type decodeFlags struct{ *callFlags[*decoding] }

// Several implements Multiple: a problem for each part.
func (f *decodeFlags) Several(cpu bool) (list []bench.Op, err error) {
	given := f.base(cpu)
	f.change(given, true)
	switch {
	case given.Steps < 1 || given.Steps > maxSteps:
		return nil, fmt.Errorf("--steps %d is not in 1..%d", given.Steps, maxSteps)
	case given.Steps > 1 && !slices.Contains(given.Parts, stepPart):
		return nil, fmt.Errorf("--steps needs --part %s", stepPart)
	case f.set.Changed("value-dim") && given.ValueDim == 0: // 0 would mean headdim
		return nil, fmt.Errorf("--value-dim 0 is not positive")
	case f.set.Changed("scale") && given.Scale == 0:
		return nil, fmt.Errorf("--scale 0 is not possible; leave it out for the default, 1/√headdim")
	case f.set.Changed("softcap") && given.Softcap == 0:
		return nil, fmt.Errorf("--softcap 0 is not possible; leave it out for none")
	case !f.set.Changed("kv-heads"):
		given.NumKVHeads = quarter(given.NumHeads)
	}
	for _, part := range given.Parts {
		d := call.Copy(given).(*decoding)
		if d.Part = part; part != stepPart {
			d.Steps = 1
		}
		op, err := f.valid(d, true)
		if err == nil && part == prefillPart {
			op, err = newPrefill(op.(tunedOp[*decoding]))
		}
		if err != nil {
			return nil, err
		}
		list = append(list, op)
	}
	return list, nil
}

// FromFlags implements Flags.
func (f *decodeFlags) FromFlags(cpu bool) (bench.Op, error) {
	list, err := f.Several(cpu)
	if err == nil && len(list) > 1 {
		err = fmt.Errorf("--part: %d parts where one is measured", len(list))
	}
	if err != nil {
		return nil, err
	}
	return list[0], nil
}

// Suite implements Flags.
func (f *decodeFlags) Suite(small bool) (list []bench.Op) {
	for _, d := range decodeCases() {
		if small {
			d.shrink()
		}
		f.change(d, false)
		op, err := f.valid(d, true)
		if err != nil {
			panic(err) // of constants
		}
		list = append(list, op)
	}
	return list
}

// Suites implements Suited.
func (f *decodeFlags) Suites() []bench.Suite {
	return []bench.Suite{{Name: "decode", About: "bfloat16, headdim 128, heads 32 of 8 where nothing else is said: caches of lengths, pages and features that serving has"}}
}

// Cases implements Suited.
func (f *decodeFlags) Cases(s bench.Suite, small bool) (*bench.Suite, []bench.Op, error) {
	if small {
		s = s.Small()
	}
	return &s, f.Suite(small), nil
}

// decodeCases returns the cases of the suite: batches and lengths, heads, several queries, head
// dimensions, pages, features, and lengths that differ.
func decodeCases() (list []*decoding) {
	add := func(batch, keys int, change ...func(d *decoding)) {
		d := newDecoding(false)
		d.Batch, d.Keys = batch, keyCounts{keys, keys}
		for _, f := range change {
			f(d)
		}
		list = append(list, d)
	}
	all := func(d *decoding) { d.NumKVHeads = 32 }
	for _, keys := range []int{1024, 4096, 16384, 65536} {
		add(1, keys)
	}
	add(1, 16384, all)
	for _, keys := range []int{1024, 4096, 16384} {
		add(16, keys)
	}
	add(16, 4096, all)
	add(64, 1024)
	add(64, 4096)
	for _, batch := range []int{1, 16} {
		for _, n := range []int{4, 8} {
			add(batch, 65536/max(batch, 4), func(d *decoding) { d.SeqQ = n })
		}
	}
	for _, n := range []int{64, 96, 256} {
		add(16, 4096, func(d *decoding) { d.HeadDim = n })
	}
	for _, batch := range []int{16, 64} {
		add(batch, 4096, func(d *decoding) { d.PageSize = 16 })
	}
	add(64, 4096, func(d *decoding) { d.Window = attention.Window{On: true, Left: 511} })
	add(16, 4096, func(d *decoding) { d.Softcap = 30 })
	add(16, 4096, func(d *decoding) { d.Sinks = true })
	add(16, 4096, func(d *decoding) { d.ALiBi = attention.ALiBiPerHead })
	add(64, 0, func(d *decoding) { d.PageSize, d.Keys = 16, keyCounts{100, 16000} })
	return list
}
