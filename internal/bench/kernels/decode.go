package kernels

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
)

// decoder is the row of decode.
func decoder() Kernel {
	impls := []string{attention.Auto.String(), attention.CoopMat.String(), attention.Scalar.String()}
	return Kernel{
		Name: "decode", Title: "attention with a cache of keys and values", How: []string{"layout"}, Impls: impls,
		New: decodeCalls().New,
		Formulas: `
    o = softmax(scale * q * kᵀ) * v
The queries are at the last positions: in a sequence with n keys, new ones included, query i
sees the keys 0 to n-queries+i, or with --causal=false all of them.`,
		About: `The rate of reading keys and values counts most: those that some query sees, from several caches
in turn, which together are larger than the device's own; its share of a copy is that rate divided
by the rate of a copy kernel. A query is a token. Pages of --page-size are in random order.

--part also measures what surrounds a call, each in its own table: append puts a key for each query
and head into the cache, and rotates keys and queries (by angles of 0); step is append and decode,
in one kernel where that is faster: then the column runs, or --config, ends in append; prefill is
append and attention of a prompt as long as --keys.`,
		Files: `
    q (batch, heads, queries, headdim), F16, BF16 or F32, of at most 64 queries; seq_lens (batch), I32:
    the keys of each sequence; k_cache (batch, max_keys, kv-heads, headdim), v_cache (batch, max_keys,
    kv-heads, valuedim), as q; with --layout hnd kv-heads come before the keys
    written: o (batch, heads, queries, valuedim), as q; lse (batch, heads, queries), F32
A row that sees no key has o = 0 and lse = -Inf, or its sink. A cache in pages has
    k_cache (pages, page, kv-heads, headdim), page a power of two from 8 on, v_cache likewise, and
    block_table (batch, max_pages), I32: the pages of each sequence, in order, then anything
and a cache in 8 bits, of a q in 16,
    F8_E4M3, where k_scale and v_scale (kv-heads), F32, are factors of heads and may be missing; or
    I8, with k_scale and v_scale, F16, as the caches but one for 32 elements of the last axis: q8_0
There may be
    k_new (batch, kv-heads, new, headdim), v_new (batch, kv-heads, new, valuedim), as q: first appended
    to the keys that seq_lens counts; the caches and the scales of q8_0 are then written, too
    tree_mask (batch, queries, 2), I32: instead of the causal mask, a word of 64 bits, the low half
    first, whose bit j says that query i sees key n-queries+j
    cache_batch_idx (batch), I32: the row of a cache without pages that has each sequence's keys; the
    cache may then have any number of rows; left_pad (batch), I32: how many first keys are hidden
    bias (batch or 1, heads or 1, queries or 1, max_keys or max_pages*page), F32 or as q; alibi_slopes
    (heads) or (batch, heads), F32; sinks (heads), F32`,
		Examples: []string{
			"bench --batch 1 --keys 4096 --part prefill,append,step,decode",
			"bench --batch 16 --keys 4096 --part step --steps 64",
			"bench --batch 64 --keys 100..16000 --page-size 16",
			`bench --suite decode --peer torch="python3 tools/peers/torch_decode.py"`,
			"run --in step.safetensors --out o.safetensors --window 512,0 --softcap 30 --impl scalar",
			"sweep --keys 1024..65536x4 --batch 1,16 --csv decode.csv",
			"tune --batch 1,16,64 --keys 4096",
		},
		Tiny: []string{"batch=1", "heads=1", "keys=16", "headdim=64"},
		Tune: &Tune{About: "It tries rows, subgroups and numbers of workgroups.", Impls: impls[1:]},
	}
}

// A decodePart is the part of a generation that a call does: Decode alone, which reads the cache;
// Append, which writes to the cache; Step, which does both; or prefill, Append of a prompt and its
// attention.
type decodePart string

// String implements fmt.Stringer.
func (p decodePart) String() string { return string(p) }

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
	return &calls[*decoding]{
		name: "decode", check: checkDecode, tensors: decodeTensors, file: decodeFile,
		keys:    "part steps dtype batch heads kv_heads queries keys head_dim value_dim cache_dtype page_size layout causal scale window softcap alibi sinks",
		derived: (*decoding).derived,
		aliases: map[string]string{"cache_seqlens": "seq_lens"}, // flash-attn's lengths do not count new keys either
		flags: slices.Concat([]flag{
			{name: "batch", usage: "number of sequences (default 16 on a GPU, 2 on a CPU device)", size: true},
			{name: "heads", field: "num_heads", usage: "query heads (default 32, or 4)", size: true},
			{name: "kv-heads", field: "num_kv_heads", usage: "key and value heads, a divisor of heads (default: a quarter of heads if that is one, else heads)", size: true},
			{name: "keys", usage: "keys of each sequence; FIRST..LAST are sequences of different lengths (default 4096, or 300)", size: true, value: parsed(parseKeys, intKind)},
			{name: "queries", field: "seq_q", usage: "queries of each sequence, the last ones", size: true},
			{name: "headdim", field: "head_dim", usage: "elements of a head, a multiple of 8 up to 256 (default 128, or 64)", size: true},
			{name: "dtype", usage: "float16, bfloat16 (default on a GPU) or float32", size: true},
			{name: "cache-dtype", field: "cache", usage: "what the cache stores: same (default) as --dtype, e4m3 or q8_0 in 8 bits", size: true,
				value: named("FORMAT", attention.CacheSame, attention.CacheE4M3, attention.CacheQ8_0)},
			{name: "page-size", usage: "keys of a page, a power of two from 8 on; 0 (default) is a cache without pages", size: true},
			{name: "part", usage: "what a call is: decode (default), append, step (both), or prefill (append of a prompt of --keys, and its attention)", size: true,
				value: named("PART", readPart, appendPart, stepPart, prefillPart)},
			{name: "steps", usage: "steps of a call of --part step, one after the other", size: true},
			{name: "layout", field: "order", usage: "axes of the cache: nhd (default) has keys before heads, hnd heads before keys", value: parsed(OneOf([]string{layoutNHD, layoutHND}), "ORDER")},
		}, scoreFlags, []flag{
			{name: "config", usage: "how work is divided, in the words of the column runs, instead of the choice of flashvk", size: true, value: parsed(pointer(attention.ParseDecodeConfig), "CONFIG")},
		}),
		base: newDecoding,
		unsaid: func(d *decoding, f *pflag.FlagSet) {
			if !f.Changed("kv-heads") {
				if d.NumKVHeads = d.NumHeads; d.NumHeads%4 == 0 {
					d.NumKVHeads /= 4
				}
			}
		},
		suites: []bench.Suite{{Name: "decode", About: "bfloat16, headdim 128, heads 32 of 8 where nothing else is said: caches of lengths, pages and features that serving has"}},
		cases: []string{
			"--batch=1 --keys=1024", "--batch=1 --keys=4096", "--batch=1 --keys=16384", "--batch=1 --keys=65536", "--batch=1 --keys=16384 --kv-heads=32",
			"--keys=1024", "--keys=4096", "--keys=16384", "--kv-heads=32", "--batch=64 --keys=1024", "--batch=64",
			"--batch=1 --keys=16384 --queries=4", "--batch=1 --keys=16384 --queries=8", "--queries=4", "--queries=8",
			"--headdim=64", "--headdim=96", "--headdim=256", "--page-size=16", "--batch=64 --page-size=16",
			"--batch=64 --window=511,0", "--softcap=30", "--sinks", "--alibi", "--batch=64 --keys=100..16000 --page-size=16",
		},
		shrink: func(d *decoding) {
			d.DType, d.NumHeads, d.NumKVHeads, d.Batch = dtype.Float16, d.NumHeads/8, d.NumKVHeads/8, max(d.Batch/8, 1)
			d.Keys, d.Window.Left = keyCounts{d.Keys.first / 32, d.Keys.last / 32}, d.Window.Left/32
		},
		path: func(d *decoding, impl string, _ bench.Pass) (err error) {
			d.Impl, err = attention.ParseImpl(impl)
			return err
		},
		tune: tuneDecode,
	}
}

// checkDecode returns an error for flags that contradict each other, and sets what follows from them.
func checkDecode(d *decoding, f *pflag.FlagSet) error {
	switch {
	case d.Steps < 1 || d.Steps > maxSteps:
		return fmt.Errorf("--steps %d is not in 1..%d", d.Steps, maxSteps)
	case f.Changed("steps") && !f.Changed("part"):
		return fmt.Errorf("--steps needs --part %s", stepPart)
	}
	if d.Part != stepPart {
		d.Steps = 1
	}
	d.Causal = d.Causal && (!d.Tree || f.Changed("causal"))
	return cmp.Or(checkScores(&d.Problem, f), d.prepare())
}

// tuneDecode has the configurations of Decode. With --config only that is compared with what flashvk
// chooses.
func tuneDecode(_ *vk.Caps, op calledOp[*decoding], p bench.Pass) ([]bench.Tunable, error) {
	if op.c.Part != readPart {
		return nil, fmt.Errorf("decode: --part %s has no configurations of its own", op.c.Part)
	}
	if op.c.Config != nil {
		return op.choices(p, op.c.DecodeProblem, *op.c.Config), nil
	}
	return op.choices(p, op.c.DecodeProblem, nil), nil
}

// decodeFile sets sizes, formats and features from the tensors of a file. The presence of k_scale and
// v_scale is part of the format of the cache.
func decodeFile(s *Source, d *decoding) error {
	d.file, d.Part, d.Steps = true, readPart, 1
	lens, errLens := s.ints("seq_lens", "batch")
	blocks, errBlocks := s.ints("block_table", "batch", "max_pages")
	rows, errRows := s.ints("cache_batch_idx", "batch")
	axes := []string{"batch", "max_keys", "kv-heads", "headdim"}
	if s.has("block_table") {
		axes[0], axes[1] = "pages", "page"
	}
	keys, heads := 1, 2
	if d.Order == layoutHND {
		keys, heads, axes[1], axes[2] = 2, 1, axes[2], axes[1]
	}
	k, errK := s.shape("k_cache", axes...)
	v, errV := s.shape("v_cache", append(axes[:3:3], "valuedim")...)
	if err := cmp.Or(errLens, errBlocks, errRows, s.into(d, "q", "dtype", "batch", "num_heads", "seq_q", "head_dim"), errK, errV); err != nil {
		return err
	}
	switch k.DType {
	case bench.FileDType(dtype.E4M3):
		d.Cache = attention.CacheE4M3
		if s.has("k_scale") || s.has("v_scale") {
			d.Scales = call.AllScales
		}
	case bench.FileDType(dtype.Int8):
		d.Cache = attention.CacheQ8_0
	}
	if d.SeqKV, d.NumKVHeads, d.LeftPad = k.Shape[keys], k.Shape[heads], s.has("left_pad"); v.Shape[3] != d.HeadDim {
		d.ValueDim = v.Shape[3]
	}
	if s.has("cache_batch_idx") {
		d.CacheRows = k.Shape[0]
	}
	if table, ok := s.Tensor("block_table"); ok {
		if d.PageSize, d.Pages = d.SeqKV, k.Shape[0]; d.PageSize == 0 {
			return fmt.Errorf(`tensor "k_cache": pages of 0 keys`)
		}
		d.SeqKV *= table.Shape[1]
	}
	for _, n := range lens {
		d.Lens = append(d.Lens, int(n))
	}
	d.Tree = s.has("tree_mask")
	if s.has("k_new") {
		added, err := s.shape("k_new", "batch", "kv-heads", "keys", "headdim")
		if err != nil {
			return err
		}
		if d.NewKeys, d.Part = added.Shape[2], stepPart; d.NewKeys == 0 {
			return fmt.Errorf(`tensor "k_new": shape %v has no keys`, added.Shape)
		}
	}
	if err := scoresOfFile(s, &d.Problem); err != nil {
		return err
	}
	return d.checkTables(blocks, rows)
}

// checkTables checks three things: every length, with the new keys, is within the capacity; every
// page that a sequence needs is in the cache; no two sequences write new keys to the same place.
func (d *decoding) checkTables(blocks, rows []int32) error {
	p := &d.DecodeProblem
	each := 0
	if p.PageSize > 0 {
		each = p.SeqKV / p.PageSize
	}
	writer := map[int32]int{} // the sequence that writes new keys to a page, or to a row of the cache
	writes := func(b int, table string, place int32) error {
		if other, ok := writer[place]; ok && other != b {
			return fmt.Errorf(`tensor %q: new keys of sequences %d and %d go to the same place, %d`, table, other, b, place)
		}
		writer[place] = b
		return nil
	}
	for b, n := range d.Lens {
		end := n + p.NewKeys
		if n < 0 || end > p.SeqKV {
			return fmt.Errorf(`tensor "seq_lens": %d keys of sequence %d, with %d new ones, are not from 0 to %d, which the cache has room for`, n, b, p.NewKeys, p.SeqKV)
		}
		if p.NewKeys > 0 && b < len(rows) {
			if err := writes(b, "cache_batch_idx", rows[b]); err != nil {
				return err
			}
		}
		if each == 0 || (b+1)*each > len(blocks) {
			continue
		}
		for i, page := range blocks[b*each:][:(end+p.PageSize-1)/p.PageSize] {
			if page < 0 || int(page) >= p.Pages {
				return fmt.Errorf(`tensor "block_table": page %d of sequence %d is %d, and not one of the %d pages`, i, b, page, p.Pages)
			}
			if p.NewKeys == 0 || (i+1)*p.PageSize <= n {
				continue
			}
			if err := writes(b, "block_table", page); err != nil {
				return err
			}
		}
	}
	return nil
}
