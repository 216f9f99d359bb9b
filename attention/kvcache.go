package attention

import (
	"context"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/enum"
	"github.com/flashvk/flashvk/vk"
)

// A CacheLayout is the order of the axes of a cache in memory.
type CacheLayout uint8

// The layouts, with FlashInfer's names. NHD is (keys, heads, dim) of a sequence or page, as in
// flash-attn and vLLM; HND is (heads, keys, dim).
const (
	NHD CacheLayout = iota
	HND
)

var layoutNames = enum.Names[CacheLayout]{NHD: "NHD", HND: "HND"}

// String returns the name.
func (l CacheLayout) String() string { return layoutNames.Of(l) }

// KVCacheConfig gives the sizes and formats of a KVCache.
type KVCacheConfig struct {
	// DecodeProblem is the problem of the largest Decode: SeqQ is the most queries of a sequence, SeqKV
	// the capacity of each. CacheRows and NewKeys are 0.
	DecodeProblem
	Layout CacheLayout
	Layers int // of a model, which share lengths and pages; 0 is one
}

// A KVCache is the memory that Append and Decode work on, and its host side, which knows the owner
// of each page. Lengths and tables are on the device, where recorded steps read them:
//
//	K, V           one per layer, as in DecodeTensors
//	KScale, VScale likewise, with Cache; scales of CacheE4M3 are 1 at first
//	SeqLens        (batch)
//	BlockTable     (batch, seq_kv/page_size), -1 beyond the pages of a sequence; paged caches only
//	CacheBatchIdx  (batch), the row of each sequence; contiguous caches only
//	State          for Decode, one call at a time
//
// A contiguous cache has a row for each sequence. In a paged cache a sequence has no page before
// Reserve, and a call with more new keys than its pages hold is an error. Sequences that Prefill and Reorder copy from one share its full pages.
//
// A function with a context waits for all commands that have been started, and returns when they
// are done. Recorded commands stay valid, except after Grow. If such a function fails because of
// the device or ctx, the content of the cache is undefined: Reset makes it empty. A KVCache belongs
// to one goroutine at a time.
type KVCache struct {
	K, V, KScale, VScale                      []vk.Tensor // of each layer
	SeqLens, BlockTable, CacheBatchIdx, State vk.Tensor

	d      *vk.Device
	config KVCacheConfig
	pool   slotPool
	table  [][]int32 // slots of each sequence in order
}

// NewKVCache returns an empty cache. Its error names the value that breaks a rule, or is an error
// of memory.
func NewKVCache(ctx context.Context, d *vk.Device, config KVCacheConfig) (_ *KVCache, err error) {
	config.Layers = max(config.Layers, 1)
	switch {
	case config.Layout > HND:
		return nil, fmt.Errorf("attention: cache: layout %v is neither NHD nor HND", config.Layout)
	case config.CacheRows != 0 || config.NewKeys != 0:
		return nil, fmt.Errorf("attention: cache: cache_rows=%d, new_keys=%d: leave them 0", config.CacheRows, config.NewKeys)
	}
	if config.PageSize == 0 {
		config.CacheRows = config.Batch
	}
	if err := config.Validate(); err != nil {
		return nil, err
	}
	k := &KVCache{d: d, config: config}
	defer func() {
		if err != nil {
			k.Close()
		}
	}()
	layers, err := k.newLayers(&config)
	if err != nil {
		return nil, err
	}
	k.setLayers(layers)
	if err := k.unitScales(ctx); err != nil {
		return nil, err
	}
	for _, t := range []struct {
		to    *vk.Tensor
		name  string
		shape []int
	}{
		{&k.SeqLens, "seq_lens", config.SeqLensShape()}, {&k.State, "state", config.StateShape()},
		{&k.BlockTable, "block_table", config.BlockTableShape()}, {&k.CacheBatchIdx, "cache_batch_idx", config.SeqLensShape()},
	} {
		if t.shape == nil || t.to == &k.CacheBatchIdx && !k.contiguous() {
			continue
		}
		if *t.to, err = d.NewTensor("cache."+t.name, dtype.Int32, t.shape...); err != nil {
			return nil, err
		}
	}
	return k, k.Reset(ctx)
}

// cacheLayers are the tensors of all layers: K, V, and their scales.
type cacheLayers [4][]vk.Tensor

func (l *cacheLayers) close() {
	for _, list := range l {
		for _, t := range list {
			t.Close()
		}
	}
}

func (k *KVCache) layers() cacheLayers { return cacheLayers{k.K, k.V, k.KScale, k.VScale} }

func (k *KVCache) setLayers(l cacheLayers) { k.K, k.V, k.KScale, k.VScale = l[0], l[1], l[2], l[3] }

// newLayers allocates K and V, and their scales if the format has any.
func (k *KVCache) newLayers(config *KVCacheConfig) (layers cacheLayers, err error) {
	defer func() {
		if err != nil {
			layers.close()
		}
	}()
	for range config.Layers {
		for i, x := range []struct {
			name  string
			dtype dtype.DType
			shape []int
		}{
			{"cache.k", config.CacheDType(), config.KShape()}, {"cache.v", config.CacheDType(), config.VShape()},
			{"cache.k_scale", config.ScaleDType(), config.KScaleShape()}, {"cache.v_scale", config.ScaleDType(), config.VScaleShape()},
		} {
			s := x.shape
			if s == nil {
				continue
			}
			permuted := config.Layout == NHD && len(s) == 4
			if permuted {
				s = []int{s[0], s[2], s[1], s[3]}
			}
			t, err := k.d.NewTensor(x.name, x.dtype, s...)
			if err != nil {
				return layers, err
			}
			if permuted {
				t = t.Permute(0, 2, 1, 3)
			}
			layers[i] = append(layers[i], t)
		}
	}
	return layers, nil
}

// unitScales sets the scales of CacheE4M3 to 1.
func (k *KVCache) unitScales(ctx context.Context) error {
	if k.config.Cache != CacheE4M3 {
		return nil
	}
	ones := slices.Repeat([]float32{1}, k.config.NumKVHeads)
	for _, t := range slices.Concat(k.KScale, k.VScale) {
		if err := t.Upload(ctx, ones); err != nil {
			return err
		}
	}
	return nil
}

// CacheBytes returns the bytes of K and V of all layers, with their scales.
func (c KVCacheConfig) CacheBytes() int64 {
	elements := int64(size(c.KShape())) + int64(size(c.VShape()))
	scales := int64(size(c.KScaleShape())) + int64(size(c.VScaleShape()))
	return int64(max(c.Layers, 1)) * (elements*int64(c.CacheDType().Size()) + scales*int64(c.ScaleDType().Size()))
}

// Close frees the memory.
func (k *KVCache) Close() {
	layers := k.layers()
	layers.close()
	for _, t := range []vk.Tensor{k.SeqLens, k.BlockTable, k.CacheBatchIdx, k.State} {
		if !t.IsZero() {
			t.Close()
		}
	}
	k.setLayers(cacheLayers{})
}

func (k *KVCache) contiguous() bool { return k.config.PageSize == 0 }

// slotKeys is the number of keys of a slot, which is a page or a row.
func (k *KVCache) slotKeys() int {
	if k.contiguous() {
		return k.config.SeqKV
	}
	return k.config.PageSize
}

// Problem returns the problem of a Decode of seqQ queries: after an Append of newKeys keys, or with
// newKeys 0 after Advance.
func (k *KVCache) Problem(seqQ, newKeys int) DecodeProblem {
	p := k.config.DecodeProblem
	p.SeqQ, p.NewKeys = seqQ, newKeys
	return p
}

// Append is the function Append on a layer of the cache. It sets the cache's tensors in t.
func (k *KVCache) Append(c *vk.Cmd, layer int, t AppendTensors, p AppendProblem) (err error) {
	defer c.Keep(&err)
	if err := k.check(layer, &p.DecodeProblem); err != nil {
		return err
	}
	t.K, t.V, t.SeqLens, t.BlockTable, t.CacheBatchIdx, t.State = k.K[layer], k.V[layer], k.SeqLens, k.BlockTable, k.CacheBatchIdx, k.State
	t.KScale, t.VScale = k.scales(layer)
	return Append(c, t, p)
}

// Decode is the function Decode on a layer of the cache. It sets the cache's tensors in t.
func (k *KVCache) Decode(c *vk.Cmd, layer int, t DecodeTensors, p DecodeProblem, opt Options) (err error) {
	defer c.Keep(&err)
	if err := k.setDecode(layer, &t, &p); err != nil {
		return err
	}
	return Decode(c, t, p, opt)
}

// Step is the function Step on a layer of the cache. It sets the cache's tensors in t.
func (k *KVCache) Step(c *vk.Cmd, layer int, t StepTensors, p AppendProblem, opt Options) (err error) {
	defer c.Keep(&err)
	if err := k.setDecode(layer, &t.DecodeTensors, &p.DecodeProblem); err != nil {
		return err
	}
	return Step(c, t, p, opt)
}

// setDecode sets the cache's tensors in t.
func (k *KVCache) setDecode(layer int, t *DecodeTensors, p *DecodeProblem) error {
	if err := k.check(layer, p); err != nil {
		return err
	}
	if n := size(p.StateShape()); n > k.State.Shape[0] {
		return fmt.Errorf("attention: cache: num_heads=%d, seq_q=%d are more than the cache is made for, num_heads=%d, seq_q=%d", p.NumHeads, p.SeqQ, k.config.NumHeads, k.config.SeqQ)
	}
	t.K, t.V, t.SeqLens, t.BlockTable, t.CacheBatchIdx = k.K[layer], k.V[layer], k.SeqLens, k.BlockTable, k.CacheBatchIdx
	t.KScale, t.VScale = k.scales(layer)
	t.State = k.State.Slice(0, 0, size(p.StateShape()))
	return nil
}

// scales returns the scales of a layer, if it has any.
func (k *KVCache) scales(layer int) (keys, values vk.Tensor) {
	if k.config.Cache == CacheSame {
		return keys, values
	}
	return k.KScale[layer], k.VScale[layer]
}

// Advance is the function Advance on the lengths of the cache, once for all layers. It must not
// remove keys that Prefill or Reorder has shared, which Truncate does.
func (k *KVCache) Advance(c *vk.Cmd, keys int) error { return Advance(c, k.SeqLens, keys) }

// size is the product of a shape, 0 of none.
func size(shape []int) int {
	if shape == nil {
		return 0
	}
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// check returns an error unless the problem is one of the cache.
func (k *KVCache) check(layer int, p *DecodeProblem) error {
	if layer < 0 || layer >= len(k.K) {
		return fmt.Errorf("attention: cache: layer=%d is not from 0 to %d", layer, len(k.K)-1)
	}
	for _, f := range []struct {
		name      string
		got, want int
	}{
		{"batch", p.Batch, k.config.Batch}, {"seq_kv", p.SeqKV, k.config.SeqKV}, {"page_size", p.PageSize, k.config.PageSize},
		{"pages", p.Pages, k.config.Pages}, {"cache_rows", p.CacheRows, k.config.CacheRows},
	} {
		if f.got != f.want {
			return fmt.Errorf("attention: cache: %s=%d, but the cache has %d", f.name, f.got, f.want)
		}
	}
	if p.Cache != k.config.Cache {
		return fmt.Errorf("attention: cache: the format of the problem is %v, but the format of the cache is %v", p.Cache, k.config.Cache)
	}
	if err := p.validateCache(); err != nil {
		return err
	}
	for b, row := range k.table {
		if room := len(row) * k.slotKeys(); room < p.NewKeys {
			return fmt.Errorf("attention: cache: sequence %d has pages for %d keys, fewer than new_keys=%d: Reserve them first", b, room, p.NewKeys)
		}
	}
	return nil
}

// Len returns the lengths of the sequences.
func (k *KVCache) Len(ctx context.Context) ([]int, error) {
	words := make([]int32, k.config.Batch)
	if err := k.SeqLens.DownloadInts(ctx, words); err != nil {
		return nil, err
	}
	lens := make([]int, len(words))
	for b, n := range words {
		lens[b] = int(n)
	}
	return lens, nil
}

// lengths is Len, with an error for an impossible length, or one after which new keys would be
// written to a shared page.
func (k *KVCache) lengths(ctx context.Context) ([]int, error) {
	lens, err := k.Len(ctx)
	if err != nil {
		return nil, err
	}
	for b, n := range lens {
		if room := len(k.table[b]) * k.slotKeys(); n < 0 || n > room {
			return nil, fmt.Errorf("attention: cache: sequence %d has %d keys, which its cache of %d cannot hold: Truncate or Reset", b, n, room)
		}
		for _, slot := range k.table[b][n/k.slotKeys():] {
			if k.pool.refs[slot] > 1 {
				return nil, fmt.Errorf("attention: cache: sequence %d has %d keys, fewer than it shares with another: Truncate it to have pages of its own", b, n)
			}
		}
	}
	return lens, nil
}

// Reset makes all sequences empty and frees their pages.
func (k *KVCache) Reset(ctx context.Context) error {
	config := &k.config
	k.pool = newSlotPool(config.slots())
	k.table = make([][]int32, config.Batch)
	for b := range k.table {
		if k.contiguous() {
			k.table[b] = []int32{k.pool.take()}
		}
	}
	if err := k.State.Zero(ctx); err != nil {
		return err
	}
	return k.upload(ctx, make([]int, config.Batch))
}

// upload stores lengths and tables on the device.
func (k *KVCache) upload(ctx context.Context, lens []int) error {
	list := make([]int32, len(lens))
	for b, n := range lens {
		list[b] = int32(n)
	}
	if err := k.SeqLens.UploadInts(ctx, list); err != nil {
		return err
	}
	return k.uploadTable(ctx)
}

func (k *KVCache) uploadTable(ctx context.Context) error {
	to, width := &k.BlockTable, k.config.SeqKV/k.slotKeys()
	if k.contiguous() {
		to = &k.CacheBatchIdx
	}
	var list []int32
	for _, row := range k.table {
		list = append(list, row...)
		for range width - len(row) {
			list = append(list, -1)
		}
	}
	return to.UploadInts(ctx, list)
}

// Status returns the errors that Append and Decode found since the last call, as DecodeStatus does.
func (k *KVCache) Status(ctx context.Context) error {
	return DecodeStatus(ctx, k.State, k.config.DecodeProblem)
}

// Free returns the number of free pages; 0 for a contiguous cache.
func (k *KVCache) Free() int {
	if k.contiguous() {
		return 0
	}
	return len(k.pool.free)
}

// slotPool knows which slots are free, and how many sequences share each of the others.
type slotPool struct {
	free []int32
	refs []int
}

func newSlotPool(n int) slotPool {
	p := slotPool{refs: make([]int, n)}
	p.add(0)
	return p
}

// add makes the slots from number first on free; the lowest is next.
func (p *slotPool) add(first int) {
	var list []int32
	for s := len(p.refs) - 1; s >= first; s-- {
		list = append(list, int32(s))
	}
	p.free = append(list, p.free...)
}

func (p *slotPool) clone() slotPool { return slotPool{slices.Clone(p.free), slices.Clone(p.refs)} }

// take returns a free slot. There must be one.
func (p *slotPool) take() int32 {
	s := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	p.refs[s] = 1
	return s
}

// share counts one more owner of the slots.
func (p *slotPool) share(slots []int32) {
	for _, s := range slots {
		p.refs[s]++
	}
}

// drop counts one owner less.
func (p *slotPool) drop(slots []int32) {
	for _, s := range slots {
		if p.refs[s]--; p.refs[s] == 0 {
			p.free = append(p.free, s)
		}
	}
}
