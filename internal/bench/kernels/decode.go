package kernels

import (
	"cmp"
	"fmt"

	"github.com/spf13/pflag"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/vk"
)

var _ = row(Kernel{
	Impls: pathNames(attention.Auto, []attention.Impl{attention.CoopMat, attention.Scalar}), How: []string{"layout"}, Tune: &Tune{},
	Tiny: []string{"batch=1", "heads=1", "keys=16", "headdim=64"},
}, decodeCalls())

// A decodePart is the part of a generation that a call does: Decode alone, which reads the cache;
// Append, which writes to the cache; Step, which does both; or prefill, Append of a prompt and its
// attention.
type decodePart string

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
		derived: (*decoding).derived,
		aliases: map[string]string{"cache_seqlens": "seq_lens"}, // flash-attn's lengths do not count new keys either
		values: scoreValues(map[string]value{
			"keys":        parsed(parseKeys, intKind),
			"cache-dtype": named("FORMAT", attention.CacheSame, attention.CacheE4M3, attention.CacheQ8_0),
			"part":        named("PART", readPart, appendPart, stepPart, prefillPart),
			"layout":      parsed(OneOf([]string{layoutNHD, layoutHND}), "ORDER"),
			"config":      parsed(pointer(attention.ParseDecodeConfig), "CONFIG"),
		}),
		unsaid: func(d *decoding, f *pflag.FlagSet) {
			if !f.Changed("kv-heads") {
				if d.NumKVHeads = d.NumHeads; d.NumHeads%4 == 0 {
					d.NumKVHeads /= 4
				}
			}
		},
		shrink: func(d *decoding, _ [3]int) {
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
