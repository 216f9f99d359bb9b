package kernels

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/call"
)

// decodeNames are the tensors that an input file may hold.
var decodeNames = []string{"q", "k_cache", "v_cache", "k_scale", "v_scale", "seq_lens", "block_table", "cache_batch_idx", "left_pad", "tree_mask", "bias", "alibi_slopes", "sinks", "k_new", "v_new"}

// Inputs implements namer.
func (f *decodeFlags) Inputs() []string { return decodeNames }

// Aliases implements namer. Flash-attn's lengths do not count new keys either.
func (f *decodeFlags) Aliases() map[string]string {
	return map[string]string{"seq_lens": "cache_seqlens"}
}

// decodeTables are the tensors of integers of a file; nil if there are none.
type decodeTables struct{ lens, blocks, rows, pad []int32 }

// FromFile implements Flags.
func (f *decodeFlags) FromFile(in File) (bench.Op, error) {
	d := call.Copy(f.given).(*decoding)
	d.file, d.Part, d.DecodeProblem.Cache = true, readPart, attention.CacheSame
	d.Problem = attention.Problem{Causal: d.Causal, Scale: d.Scale, Window: d.Window, Softcap: d.Softcap}
	for _, t := range in.Tensors() {
		if !slices.Contains(decodeNames, t.Name) {
			return nil, fmt.Errorf("tensor %s is not one of %s", shortName(t.Name), strings.Join(decodeNames, ", "))
		}
	}
	tables, err := d.readCache(in)
	if err != nil {
		return nil, err
	}
	if err := readFeatures(in, &d.Problem); err != nil {
		return nil, err
	}
	if _, d.Tree = in.Tensor("tree_mask"); d.Tree && !f.set.Changed("causal") {
		d.Causal = false
	}
	if _, ok := in.Tensor("k_new"); ok {
		shape, _, err := Header(in.Tensors()).Floats("k_new", "batch", "kv-heads", "keys", "headdim")
		if err != nil {
			return nil, err
		}
		if shape[2] == 0 {
			return nil, fmt.Errorf(`tensor "k_new": shape %v has no keys`, shape)
		}
		d.NewKeys, d.Part = shape[2], stepPart
	}
	if err := d.DecodeProblem.Validate(); err != nil {
		return nil, err
	}
	if err := tables.check(d); err != nil {
		return nil, err
	}
	return f.valid(d, false)
}

// readCache sets the sizes and formats that q, the cache and the tables show. The presence of k_scale
// and v_scale is part of the format.
func (d *decoding) readCache(in File) (tables decodeTables, err error) {
	h, paged := Header(in.Tensors()), false
	for _, x := range []struct {
		name   string
		target *[]int32
		axes   int
	}{{"seq_lens", &tables.lens, 1}, {"block_table", &tables.blocks, 2}, {"cache_batch_idx", &tables.rows, 1}, {"left_pad", &tables.pad, 1}} {
		if *x.target, err = readTable(in, x.name, x.axes); err != nil {
			return tables, err
		}
	}
	axes := []string{"batch", "max_keys", "kv-heads", "headdim"}
	if paged = tables.blocks != nil; paged {
		axes[0], axes[1] = "pages", "page"
	}
	if d.Order == layoutHND {
		axes[1], axes[2] = axes[2], axes[1]
	}
	q, format, err := h.Floats("q", "batch", "heads", "queries", "headdim")
	if err != nil {
		return tables, err
	}
	kTensor, _ := h.Tensor("k_cache")
	switch kTensor.DType {
	case bench.FileDType(dtype.E4M3):
		d.Cache = attention.CacheE4M3
		_, hasK := h.Tensor("k_scale")
		if _, hasV := h.Tensor("v_scale"); hasK || hasV {
			d.Scales = call.AllScales
		}
	case bench.FileDType(dtype.Int8):
		d.Cache = attention.CacheQ8_0
	}
	k, kFormat, err := d.cacheFloats(h, "k_cache", axes...)
	if err != nil {
		return tables, err
	}
	axes[3] = "valuedim"
	v, vFormat, err := d.cacheFloats(h, "v_cache", axes...)
	if err != nil {
		return tables, err
	}
	switch {
	case d.Cache == attention.CacheSame && kFormat != format:
		err = fmt.Errorf(`tensor "k_cache": dtype %s differs from %s of q`, bench.FileDType(kFormat), bench.FileDType(format))
	case vFormat != kFormat:
		err = fmt.Errorf(`tensor "v_cache": dtype %s differs from %s of k_cache`, bench.FileDType(vFormat), bench.FileDType(kFormat))
	case !slices.Equal(v[:3], k[:3]):
		err = fmt.Errorf(`tensor "v_cache": shape %v differs from %v of k_cache before the last axis`, v, k)
	case k[3] != q[3]:
		err = fmt.Errorf(`tensor "k_cache": headdim %d differs from %d of q`, k[3], q[3])
	case v[3] == 0: // 0 would mean headdim
		err = fmt.Errorf(`tensor "v_cache": shape %v has a last axis of 0`, v)
	case paged && tables.rows != nil:
		err = fmt.Errorf(`tensors "block_table" and "cache_batch_idx" exclude each other`)
	case !paged && tables.rows == nil && k[0] != q[0]:
		err = fmt.Errorf(`tensor "k_cache": batch %d differs from %d of q, and there is no cache_batch_idx`, k[0], q[0])
	}
	if err != nil {
		return tables, err
	}
	d.Batch, d.NumHeads, d.SeqQ, d.HeadDim, d.DType = q[0], q[1], q[2], q[3], format
	if v[3] != q[3] {
		d.ValueDim = v[3]
	}
	d.SeqKV, d.NumKVHeads, d.LeftPad = k[1], k[2], tables.pad != nil
	if d.Order == layoutHND {
		d.SeqKV, d.NumKVHeads = k[2], k[1]
	}
	if tables.rows != nil {
		d.CacheRows = k[0]
	}
	if paged {
		table, _ := h.Tensor("block_table")
		if d.PageSize, d.Pages = d.SeqKV, k[0]; d.PageSize == 0 {
			return tables, fmt.Errorf(`tensor "k_cache": pages of 0 keys`)
		}
		d.SeqKV *= table.Shape[1]
	}
	for _, n := range tables.lens {
		d.Lens = append(d.Lens, int(n))
	}
	return tables, nil
}

// cacheFloats is Header.Floats of k_cache or v_cache, which may have 8 bits.
func (d *decoding) cacheFloats(h Header, name string, axes ...string) ([]int, dtype.DType, error) {
	t, ok := h.Tensor(name)
	if want := d.CacheDType(); ok && d.Cache != attention.CacheSame && t.DType == bench.FileDType(want) {
		if len(t.Shape) != len(axes) {
			return nil, 0, fmt.Errorf("tensor %q: shape %v has %d axes, want %d", name, t.Shape, len(t.Shape), len(axes))
		}
		return t.Shape, want, nil
	}
	return h.Floats(name, axes...)
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

// check checks three things: every length, with the new keys, is within the capacity; every
// page that a sequence needs is in the cache; no two sequences write new keys to the same place.
// CheckFile checks the sizes of tables.
func (x *decodeTables) check(d *decoding) error {
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
	for b, n := range x.lens {
		end := int(n) + p.NewKeys
		switch {
		case n < 0 || int(n) > p.SeqKV:
			return fmt.Errorf(`tensor "seq_lens": %d keys of sequence %d are not from 0 to %d, which the cache has room for`, n, b, p.SeqKV)
		case end > p.SeqKV:
			return fmt.Errorf(`tensor "seq_lens": %d keys of sequence %d and %d new ones are more than the %d that the cache has room for`, n, b, p.NewKeys, p.SeqKV)
		case p.NewKeys > 0 && b < len(x.rows):
			if err := writes(b, "cache_batch_idx", x.rows[b]); err != nil {
				return err
			}
		}
		if each == 0 || (b+1)*each > len(x.blocks) {
			continue
		}
		for i, page := range x.blocks[b*each:][:(end+p.PageSize-1)/p.PageSize] {
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
