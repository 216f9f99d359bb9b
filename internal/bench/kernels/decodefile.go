package kernels

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/bench"
)

// decodeNames are the tensors that an input file may hold.
var decodeNames = []string{"q", "k_cache", "v_cache", "k_scale", "v_scale", "seq_lens", "block_table", "cache_batch_idx", "left_pad", "tree_mask", "bias", "alibi_slopes", "sinks", "k_new", "v_new"}

// Inputs implements namer.
func (d *decodeFlags) Inputs() []string { return decodeNames }

// Aliases implements namer. Flash-attn's lengths do not count new keys either.
func (d *decodeFlags) Aliases() map[string]string {
	return map[string]string{"seq_lens": "cache_seqlens"}
}

// FromFile implements Flags.
func (d *decodeFlags) FromFile(in File) (bench.Op, error) {
	o := &decodeOp{part: readPart, keys: "of the file", heads: d.layout == layoutHND, state: &decodeState{}}
	p := &o.p
	if err := d.score.apply(&p.Problem); err != nil {
		return nil, err
	}
	for _, t := range in.Tensors() {
		if !slices.Contains(decodeNames, t.Name) {
			return nil, fmt.Errorf("tensor %s is not one of %s", shortName(t.Name), strings.Join(decodeNames, ", "))
		}
	}
	if err := o.readCache(in); err != nil {
		return nil, err
	}
	if err := readFeatures(in, &p.Problem); err != nil {
		return nil, err
	}
	if _, p.Tree = in.Tensor("tree_mask"); p.Tree && !d.set.Changed("causal") {
		p.Causal = false
	}
	if _, ok := in.Tensor("k_new"); ok {
		shape, _, err := Header(in.Tensors()).Floats("k_new", "batch", "kv-heads", "keys", "headdim")
		if err != nil {
			return nil, err
		}
		if shape[2] == 0 {
			return nil, fmt.Errorf(`tensor "k_new": shape %v has no keys`, shape)
		}
		p.NewKeys, o.part, o.file = shape[2], stepPart, true
	}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	return o, o.checkTables()
}

// readCache sets the sizes and formats that q, the cache and the tables show.
func (o *decodeOp) readCache(in File) error {
	h, p := Header(in.Tensors()), &o.p
	var err error
	for _, x := range []struct {
		name   string
		target *[]int32
		axes   int
	}{{"seq_lens", &o.tables.lens, 1}, {"block_table", &o.tables.blocks, 2}, {"cache_batch_idx", &o.tables.rows, 1}, {"left_pad", &o.tables.pad, 1}} {
		if err == nil {
			*x.target, err = readTable(in, x.name, x.axes)
		}
	}
	if err != nil {
		return err
	}
	q, format, err := h.Floats("q", "batch", "heads", "queries", "headdim")
	if err != nil {
		return err
	}
	paged := o.tables.blocks != nil
	axes := []string{"batch", "max_keys", "kv-heads", "headdim"}
	if paged {
		axes[0], axes[1] = "pages", "page"
	}
	if o.heads {
		axes[1], axes[2] = axes[2], axes[1]
	}
	o.readCacheFormat(h)
	k, kFormat, err := o.cacheFloats(h, "k_cache", axes...)
	if err != nil {
		return err
	}
	axes[3] = "valuedim"
	v, vFormat, err := o.cacheFloats(h, "v_cache", axes...)
	if err != nil {
		return err
	}
	switch {
	case p.Cache == attention.CacheSame && kFormat != format:
		return fmt.Errorf(`tensor "k_cache": dtype %s differs from %s of q`, bench.FileDType(kFormat), bench.FileDType(format))
	case vFormat != kFormat:
		return fmt.Errorf(`tensor "v_cache": dtype %s differs from %s of k_cache`, bench.FileDType(vFormat), bench.FileDType(kFormat))
	case !slices.Equal(v[:3], k[:3]):
		return fmt.Errorf(`tensor "v_cache": shape %v differs from %v of k_cache before the last axis`, v, k)
	case k[3] != q[3]:
		return fmt.Errorf(`tensor "k_cache": headdim %d differs from %d of q`, k[3], q[3])
	case v[3] == 0: // 0 would mean headdim
		return fmt.Errorf(`tensor "v_cache": shape %v has a last axis of 0`, v)
	}
	p.Batch, p.NumHeads, p.SeqQ, p.HeadDim, p.DType = q[0], q[1], q[2], q[3], format
	if v[3] != q[3] {
		p.ValueDim = v[3]
	}
	size, heads := k[1], k[2]
	if o.heads {
		size, heads = heads, size
	}
	p.NumKVHeads, p.LeftPad = heads, o.tables.pad != nil
	if !paged {
		p.SeqKV = size
		if o.tables.rows != nil {
			p.CacheRows = k[0]
		} else if k[0] != q[0] {
			return fmt.Errorf(`tensor "k_cache": batch %d differs from %d of q, and there is no cache_batch_idx`, k[0], q[0])
		}
		return nil
	}
	if o.tables.rows != nil {
		return fmt.Errorf(`tensors "block_table" and "cache_batch_idx" exclude each other`)
	}
	table, _ := h.Tensor("block_table")
	p.PageSize, p.Pages, p.SeqKV = size, k[0], size*table.Shape[1]
	if size == 0 {
		return fmt.Errorf(`tensor "k_cache": pages of 0 keys`)
	}
	return nil
}

// readTable reads a tensor of integers, nil if there is none.
func readTable(in File, name string, axes int) ([]int32, error) {
	t, ok := in.Tensor(name)
	if !ok {
		return nil, nil
	}
	if t.DType != "I32" {
		return nil, fmt.Errorf("tensor %q: dtype %s is not I32", name, t.DType)
	}
	if len(t.Shape) != axes {
		return nil, fmt.Errorf("tensor %q: shape %v has %d axes, want %d", name, t.Shape, len(t.Shape), axes)
	}
	list, err := ReadInt32(in, t)
	if list == nil {
		list = []int32{}
	}
	return list, err
}

// checkTables checks three things: every length, with the new keys, is within the capacity; every
// page that a sequence needs is in the cache; no two sequences write new keys to the same place.
// CheckFile checks the sizes of tables.
func (o *decodeOp) checkTables() error {
	p := &o.p
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
	for b, n := range o.tables.lens {
		end := int(n) + p.NewKeys
		switch {
		case n < 0 || int(n) > p.SeqKV:
			return fmt.Errorf(`tensor "seq_lens": %d keys of sequence %d are not from 0 to %d, which the cache has room for`, n, b, p.SeqKV)
		case end > p.SeqKV:
			return fmt.Errorf(`tensor "seq_lens": %d keys of sequence %d and %d new ones are more than the %d that the cache has room for`, n, b, p.NewKeys, p.SeqKV)
		case p.NewKeys > 0 && b < len(o.tables.rows):
			if err := writes(b, "cache_batch_idx", o.tables.rows[b]); err != nil {
				return err
			}
		}
		if each == 0 || (b+1)*each > len(o.tables.blocks) {
			continue
		}
		for i, page := range o.tables.blocks[b*each:][:(end+p.PageSize-1)/p.PageSize] {
			if page < 0 || int(page) >= p.Pages {
				return fmt.Errorf(`tensor "block_table": page %d of sequence %d is %d, and not one of the %d pages`, i, b, page, p.Pages)
			}
			if p.NewKeys == 0 || (i+1)*p.PageSize <= int(n) {
				continue
			}
			if err := writes(b, "block_table", page); err != nil {
				return err
			}
		}
	}
	return nil
}
