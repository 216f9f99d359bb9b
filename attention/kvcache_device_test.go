package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func newCache(t *testing.T, dev *vk.Device, config attention.KVCacheConfig) *attention.KVCache {
	cache, err := attention.NewKVCache(t.Context(), dev, config)
	require.NoError(t, err)
	t.Cleanup(cache.Close)
	return cache
}

// contents returns K and V of a sequence, (heads, keys, dim), through the tables of the device.
func contents(t *testing.T, cache *attention.KVCache, layer, sequence, keys int) (k, v []float32) {
	p := cache.Problem(1, 0)
	var slot []int32
	slotKeys := p.SeqKV
	if p.PageSize > 0 {
		slotKeys = p.PageSize
		slot = ints(t, cache.BlockTable)[sequence*(p.SeqKV/p.PageSize):]
	} else {
		slot = ints(t, cache.CacheBatchIdx)[sequence:]
	}
	all := [2][]float32{elements(t, cache.K[layer]), elements(t, cache.V[layer])}
	var scales [2][]float32
	if p.Cache != attention.CacheSame {
		scales = [2][]float32{elements(t, cache.KScale[layer]), elements(t, cache.VScale[layer])}
	}
	var out [2][]float32
	for i, dim := range []int{p.HeadDim, p.ValueHeadDim()} {
		for h := range p.NumKVHeads {
			for j := range keys {
				at := ((int(slot[j/slotKeys])*p.NumKVHeads+h)*slotKeys + j%slotKeys) * dim
				for e, x := range all[i][at : at+dim] {
					switch p.Cache {
					case attention.CacheE4M3:
						x *= scales[i][h]
					case attention.CacheQ8_0:
						x *= scales[i][(at+e)/attention.QuantBlock]
					}
					out[i] = append(out[i], x)
				}
			}
		}
	}
	return out[0], out[1]
}

// elements returns the elements of a tensor, integers too.
func elements(t *testing.T, x vk.Tensor) []float32 {
	data := make([]float32, x.NumElements())
	if x.DType != dtype.Int8 {
		require.NoError(t, x.Download(t.Context(), data))
		return data
	}
	raw := make([]byte, len(data))
	require.NoError(t, x.DownloadRaw(t.Context(), raw))
	for i := range raw {
		data[i] = float32(int8(raw[i]))
	}
	return data
}

func ints(t *testing.T, x vk.Tensor) []int32 {
	list := make([]int32, x.NumElements())
	require.NoError(t, x.DownloadInts(t.Context(), list))
	return list
}

// A cacheModel is what a cache should hold: which key, by a number, each sequence has at each
// place.
type cacheModel [][]int

// TestKVCache does random things to caches and compares them with a model.
func TestKVCache(t *testing.T) {
	dev := vktest.Open(t)
	for _, layout := range []attention.CacheLayout{attention.NHD, attention.HND} {
		for _, pageSize := range []int{0, 8} {
			for _, format := range []attention.CacheFormat{attention.CacheSame, attention.CacheE4M3, attention.CacheQ8_0} {
				t.Run(fmt.Sprintf("%v/page_size=%d/%v", layout, pageSize, format), func(t *testing.T) {
					config := attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
						Batch: 4, NumHeads: 2, NumKVHeads: 2, SeqQ: 1, SeqKV: 48, HeadDim: 64, ValueDim: 32, DType: dtype.Float16,
					}, PageSize: pageSize, Cache: format}, Layout: layout, Layers: 2}
					if pageSize > 0 {
						config.Pages = 10
					}
					if format == attention.CacheSame {
						config.DType, config.HeadDim, config.ValueDim = dtype.Float32, 16, 8
					}
					cache := newCache(t, dev, config)
					if format == attention.CacheE4M3 {
						for layer := range 2 {
							require.NoError(t, cache.KScale[layer].Upload(t.Context(), headScales))
							require.NoError(t, cache.VScale[layer].Upload(t.Context(), headScales))
						}
					}
					testRandomly(t, dev, cache)
				})
			}
		}
	}
}

// TestCacheBytes counts what NewKVCache allocates.
func TestCacheBytes(t *testing.T) {
	dev := vktest.Open(t)
	for _, format := range []attention.CacheFormat{attention.CacheSame, attention.CacheE4M3, attention.CacheQ8_0} {
		config := attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
			Batch: 3, NumHeads: 4, NumKVHeads: 2, SeqQ: 1, SeqKV: 48, HeadDim: 64, ValueDim: 32, DType: dtype.Float16,
		}, Cache: format}, Layers: 2}
		cache := newCache(t, dev, config)
		n := int64(0)
		for _, x := range slices.Concat(cache.K, cache.V, cache.KScale, cache.VScale) {
			n += x.Buffer.Bytes()
		}
		require.Equal(t, n, config.CacheBytes(), format)
	}
}

func testRandomly(t *testing.T, dev *vk.Device, cache *attention.KVCache) {
	r := rand.New(rand.NewPCG(5, 5))
	ctx := t.Context()
	model := make(cacheModel, 4)
	next, refused := 1, 0
	try := func(err error, apply func()) {
		if err == nil {
			apply()
			return
		}
		require.ErrorContains(t, err, "more pages are needed")
		refused++
	}
	steps := 150
	if !vktest.Thorough(dev) {
		steps = 75
	}
	for range steps {
		switch r.IntN(7) {
		case 0:
			b := r.IntN(4)
			n := r.IntN(len(model[b]) + 1)
			try(cache.Truncate(ctx, b, n), func() { model[b] = model[b][:n] })
		case 1:
			from, to := r.IntN(4), []int{r.IntN(4), r.IntN(4)}
			try(cache.Prefill(ctx, from, to...), func() {
				for _, b := range to {
					model[b] = model[from]
				}
			})
		case 2:
			parents := []int{r.IntN(4), r.IntN(4), r.IntN(4), r.IntN(4)}
			try(cache.Reorder(ctx, parents), func() {
				old := slices.Clone(model)
				for b, s := range parents {
					model[b] = old[s]
				}
			})
		case 3:
			if p := cache.Problem(1, 0); p.SeqKV < 80 {
				pages := 0
				if p.PageSize > 0 {
					pages = p.Pages + r.IntN(2)
				}
				require.NoError(t, cache.Grow(ctx, p.SeqKV+8*r.IntN(2), pages))
			}
		default:
			keys := 1 + r.IntN(9)
			if longest := slices.MaxFunc(model, func(a, b []int) int { return len(a) - len(b) }); len(longest)+keys > cache.Problem(1, 0).SeqKV {
				require.ErrorContains(t, cache.Reserve(ctx, keys), "more are beyond the capacity")
				continue
			}
			try(cache.Reserve(ctx, keys), func() {
				appendNumbers(t, dev, cache, keys, next)
				for b := range model {
					model[b] = slices.Clone(model[b])
					for i := range keys {
						model[b] = append(model[b], next+b*keys+i)
					}
				}
				next += 4 * keys
			})
		}
		checkModel(t, cache, model)
	}
	if cache.Problem(1, 0).PageSize > 0 {
		require.Positive(t, refused)
	}
	require.NoError(t, cache.Reset(ctx))
	checkModel(t, cache, make(cacheModel, 4))
	if p := cache.Problem(1, 0); p.PageSize > 0 {
		require.Equal(t, p.Pages, cache.Free())
	}
}

// appendNumbers appends keys whose elements are numbers: b*keys+i of the sequences, in both layers.
func appendNumbers(t *testing.T, dev *vk.Device, cache *attention.KVCache, keys, first int) {
	p := attention.AppendProblem{DecodeProblem: cache.Problem(1, keys)}
	c, err := dev.NewCmd("append")
	require.NoError(t, err)
	defer c.Close()
	for layer := range cache.K {
		k := vktest.Tensor(t, dev, p.DType, p.NewKShape()...)
		v := vktest.Tensor(t, dev, p.DType, p.NewVShape()...)
		for _, x := range []vk.Tensor{k, v} {
			data := make([]float32, x.NumElements())
			for i := range data {
				dim := x.Shape[3]
				data[i] = keyNumber(&p.DecodeProblem, layer, i/dim/keys%p.NumKVHeads, first+i/dim/keys/p.NumKVHeads*keys+i/dim%keys, i%dim)
			}
			require.NoError(t, x.Upload(t.Context(), data))
		}
		require.NoError(t, cache.Append(c, layer, attention.AppendTensors{NewK: k, NewV: v}, p))
	}
	require.NoError(t, cache.Advance(c, keys))
	require.NoError(t, c.Submit(t.Context()))
	require.NoError(t, cache.Status(t.Context()))
}

// headScales are the scales of key heads, in e4m3.
var headScales = []float32{2, 0.5}

// keyNumber is an element of a key, or value, which the format of the cache holds.
func keyNumber(p *attention.DecodeProblem, layer, head, key, e int) float32 {
	n := ((key*2+head)*2+layer)*16 + e
	switch p.Cache {
	case attention.CacheE4M3:
		return dtype.FromE4M3(uint8(n*37%127)) * headScales[head]
	case attention.CacheQ8_0: // with a power of two for each block
		q := 127
		if e%attention.QuantBlock > 0 {
			q = n*37%255 - 127
		}
		return float32(q) * float32(int(1)<<(key%4))
	}
	return float32(n)
}

// checkModel compares keys, and wants each page in a table or free.
func checkModel(t *testing.T, cache *attention.KVCache, model cacheModel) {
	lens, err := cache.Len(t.Context())
	require.NoError(t, err)
	if p := cache.Problem(1, 0); p.PageSize > 0 {
		taken := map[int32]bool{}
		for _, page := range ints(t, cache.BlockTable) {
			if page >= 0 {
				taken[page] = true
			}
		}
		require.Equal(t, p.Pages, len(taken)+cache.Free())
	}
	for b := range model {
		require.Equal(t, len(model[b]), lens[b])
		for layer := range cache.K {
			k, v := contents(t, cache, layer, b, lens[b])
			p := cache.Problem(1, 0)
			for head := range p.NumKVHeads {
				for j, key := range model[b] {
					at := head*lens[b] + j
					require.Equal(t, keyNumber(&p, layer, head, key, 3), k[at*p.HeadDim+3], "sequence %d, layer %d, key %d", b, layer, j)
					require.Equal(t, keyNumber(&p, layer, head, key, 7), v[at*p.ValueHeadDim()+7], "sequence %d, layer %d, value %d", b, layer, j)
				}
			}
		}
	}
}

// TestSpares has a sequence whose reserved pages are more than its new length leaves room for.
func TestSpares(t *testing.T) {
	dev := vktest.Open(t)
	ctx := t.Context()
	cache := newCache(t, dev, attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
		Batch: 2, NumHeads: 2, NumKVHeads: 2, SeqQ: 1, SeqKV: 24, HeadDim: 16, DType: dtype.Float32,
	}, PageSize: 8, Pages: 8}})
	require.NoError(t, cache.Reserve(ctx, 17))
	appendNumbers(t, dev, cache, 17, 1)
	require.NoError(t, cache.Truncate(ctx, 0, 0))
	require.NoError(t, cache.Reserve(ctx, 7))
	require.Equal(t, 4, cache.Free())
	require.NoError(t, cache.Prefill(ctx, 1, 0)) // two pages shared, one copied, no room for the reserved one
	require.Equal(t, 4, cache.Free())
	keys := make([]int, 17)
	for i := range keys {
		keys[i] = 1 + 17 + i
	}
	checkModel(t, cache, cacheModel{keys, keys})
}

// TestSharedRemoved removes shared keys on the device: pages that new keys would be written to are
// shared no more before there are any.
func TestSharedRemoved(t *testing.T) {
	dev := vktest.Open(t)
	ctx := t.Context()
	cache := newCache(t, dev, attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
		Batch: 2, NumHeads: 2, NumKVHeads: 2, SeqQ: 1, SeqKV: 24, HeadDim: 16, DType: dtype.Float32,
	}, PageSize: 8, Pages: 8}})
	require.NoError(t, cache.Reserve(ctx, 16))
	appendNumbers(t, dev, cache, 16, 1)
	require.EqualError(t, cache.Reserve(ctx, math.MaxInt), fmt.Sprintf("attention: cache: sequence 0 has 16 keys, %d more are beyond the capacity seq_kv=24", math.MaxInt))
	require.NoError(t, cache.Prefill(ctx, 0, 1))
	require.NoError(t, dev.Run(ctx, "remove", func(c *vk.Cmd) error { return cache.Advance(c, -11) }))
	const want = "attention: cache: sequence 0 has 5 keys, fewer than it shares with another: Truncate it to have pages of its own"
	require.EqualError(t, cache.Reserve(ctx, 1), want)
	require.EqualError(t, cache.Reorder(ctx, []int{1, 0}), want)
	require.NoError(t, cache.Truncate(ctx, 0, 5))
	require.NoError(t, cache.Reserve(ctx, 4))
	appendNumbers(t, dev, cache, 4, 100)
	require.Equal(t, 4, cache.Free(), "two pages of each")
	checkModel(t, cache, cacheModel{{1, 2, 3, 4, 5, 100, 101, 102, 103}, {1, 2, 3, 4, 5, 104, 105, 106, 107}})
}

// TestKVCacheRefuses has the mistakes that the host sees.
func TestKVCacheRefuses(t *testing.T) {
	dev := vktest.Open(t)
	ctx := t.Context()
	good := attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
		Batch: 2, NumHeads: 2, NumKVHeads: 1, SeqQ: 2, SeqKV: 24, HeadDim: 32, DType: dtype.Float32,
	}, PageSize: 8, Pages: 4}}
	for _, c := range []struct {
		change func(c *attention.KVCacheConfig)
		want   string
	}{
		{func(c *attention.KVCacheConfig) { c.Layout = 2 }, "attention: cache: layout CacheLayout(2) is neither NHD nor HND"},
		{func(c *attention.KVCacheConfig) { c.CacheRows = 2 }, "attention: cache: cache_rows=2, new_keys=0: leave them 0"},
		{func(c *attention.KVCacheConfig) { c.PageSize = 12 }, "attention: page_size=12 is not a power of two from 8"},
		{func(c *attention.KVCacheConfig) { c.SeqKV = 23 }, "attention: the capacity seq_kv=23 is not a number of pages of page_size=8"},
		{func(c *attention.KVCacheConfig) { c.Cache = attention.CacheE4M3 }, "attention: a cache of e4m3 has queries of float16 or bfloat16, not float32"},
		{func(c *attention.KVCacheConfig) { c.DType, c.HeadDim, c.Cache = dtype.Float16, 40, attention.CacheQ8_0 }, "attention: head_dim=40 is not a multiple of 32, a block of q8_0"},
		{func(c *attention.KVCacheConfig) {
			c.DType, c.ValueDim, c.Cache = dtype.Float16, 40, attention.CacheQ8_0
		}, "attention: value_dim=40 is not a multiple of 32, a block of q8_0"},
		{func(c *attention.KVCacheConfig) { c.Cache = 3 }, "attention: CacheFormat(3) is no format of a cache"},
		{func(c *attention.KVCacheConfig) { c.SeqQ = 65 }, "attention: seq_q=65 is larger than the 64 of decoding"},
	} {
		config := good
		c.change(&config)
		_, err := attention.NewKVCache(ctx, dev, config)
		require.EqualError(t, err, c.want)
	}
	cache := newCache(t, dev, good)
	require.EqualError(t, cache.Reserve(ctx, -1), "attention: cache: keys=-1 to reserve is negative")
	require.EqualError(t, cache.Reserve(ctx, 24), "attention: cache: 6 more pages are needed, but 4 of 4 are free")
	require.EqualError(t, cache.Reserve(ctx, 25), "attention: cache: sequence 0 has 0 keys, 25 more are beyond the capacity seq_kv=24")
	require.EqualError(t, cache.Truncate(ctx, 2, 0), "attention: cache: sequence=2 is not from 0 to 1")
	require.EqualError(t, cache.Truncate(ctx, 1, 1), "attention: cache: sequence 1 has 0 keys, of which n=1 cannot be the first")
	require.EqualError(t, cache.Reorder(ctx, []int{0}), "attention: cache: 1 parents of 2 sequences")
	require.EqualError(t, cache.Reorder(ctx, []int{0, 2}), "attention: cache: sequence=2 is not from 0 to 1")
	require.EqualError(t, cache.Prefill(ctx, 0, 2), "attention: cache: sequence=2 is not from 0 to 1")
	require.EqualError(t, cache.Prefill(ctx, -1, 1), "attention: cache: sequence=-1 is not from 0 to 1")
	require.EqualError(t, cache.Grow(ctx, 16, 4), "attention: cache: seq_kv=16, pages=4 are less than the cache has, seq_kv=24, pages=4")
	require.EqualError(t, cache.Grow(ctx, 30, 4), "attention: the capacity seq_kv=30 is not a number of pages of page_size=8")

	none := func(*attention.DecodeProblem) {}
	for _, c := range []struct {
		layer, queries, keys int // of Append, without keys of Decode
		change               func(p *attention.DecodeProblem)
		want                 string
	}{
		{1, 1, 0, none, "attention: cache: layer=1 is not from 0 to 0"},
		{0, 3, 0, none, "attention: cache: num_heads=2, seq_q=3 are more than the cache is made for, num_heads=2, seq_q=2"},
		{0, 1, 1, func(p *attention.DecodeProblem) { p.SeqKV = 32 }, "attention: cache: seq_kv=32, but the cache has 24"},
		{0, 1, 1, func(p *attention.DecodeProblem) { p.Cache = attention.CacheE4M3 },
			"attention: cache: the format of the problem is e4m3, but the format of the cache is same"},
		{0, 1, 1, none, "attention: cache: sequence 0 has pages for 0 keys, fewer than new_keys=1: Reserve them first"},
		{0, 1, 25, none, "attention: new_keys=25 is not from 0 to the capacity seq_kv=24"},
	} {
		p := cache.Problem(c.queries, c.keys)
		c.change(&p)
		require.EqualError(t, refuse(t, dev, c.want, func(cmd *vk.Cmd) error {
			if c.keys == 0 {
				return cache.Decode(cmd, c.layer, attention.DecodeTensors{}, p, attention.Options{})
			}
			return cache.Append(cmd, c.layer, attention.AppendTensors{}, attention.AppendProblem{DecodeProblem: p})
		}), c.want)
	}
	require.NoError(t, cache.Reserve(ctx, 8))
	const want = "attention: cache: sequence 0 has pages for 8 keys, fewer than new_keys=9: Reserve them first"
	require.EqualError(t, refuse(t, dev, want, func(c *vk.Cmd) error {
		return cache.Step(c, 0, attention.StepTensors{}, attention.AppendProblem{DecodeProblem: cache.Problem(1, 9)}, attention.Options{})
	}), want)
}

// refuse wants an error of recording, which stays with the Cmd, and returns it.
func refuse(t *testing.T, dev *vk.Device, want string, record func(c *vk.Cmd) error) error {
	t.Helper()
	c, err := dev.NewCmd("refused")
	require.NoError(t, err)
	defer c.Close()
	err = record(c)
	require.ErrorContains(t, err, want)
	require.EqualError(t, c.Submit(t.Context()), err.Error())
	return err
}
