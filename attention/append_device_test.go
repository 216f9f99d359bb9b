package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestAppendFused wants the same bits where Q, NewK and NewV are parts of the same rows, with the
// axis of keys before the axis of heads, and where tables are longer than the cache.
func TestAppendFused(t *testing.T) {
	dev := vktest.Open(t)
	for _, rope := range []attention.RoPE{{Dims: 64}, {Dims: 64, Interleaved: true}} {
		for _, format := range dtype.All() {
			c := call.Append{Step: call.Step{Decode: call.Decode{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
				Batch: 3, NumHeads: 6, NumKVHeads: 2, SeqQ: 4, SeqKV: 64, HeadDim: 64, DType: format,
			}, NewKeys: 4}, Lens: []int{0, 30, 60}}, RoPE: rope}}
			x := call.Inputs(&c)
			apart, fused := uploaded(t, dev, &c, x), uploaded(t, dev, &c, x)
			all := vktest.Tensor(t, dev, format, c.Batch, c.SeqQ, c.NumHeads+2*c.NumKVHeads, c.HeadDim)
			rows := func() (list []float32) {
				parts := [][]float32{elements(t, apart["q"]), elements(t, apart["new_k"]), elements(t, apart["new_v"])}
				for b := range c.Batch {
					for i := range c.SeqQ {
						for _, part := range parts {
							heads := len(part) / (c.Batch * c.SeqQ * c.HeadDim)
							for h := range heads {
								list = append(list, part[((b*heads+h)*c.SeqQ+i)*c.HeadDim:][:c.HeadDim]...)
							}
						}
					}
				}
				return list
			}
			require.NoError(t, all.Upload(t.Context(), rows()))
			first := 0
			for _, name := range []string{"q", "new_k", "new_v"} {
				heads := fused[name].Shape[1]
				fused[name] = all.Permute(0, 2, 1, 3).Slice(1, first, first+heads)
				first += heads
			}
			cos, sin := attention.Frequencies{Dims: rope.Dims}.Table(c.SeqKV + 3)
			fused["cos"] = vktest.Values(t, dev, dtype.Float32, cos, c.SeqKV+3, rope.Dims/2)
			fused["sin"] = vktest.Values(t, dev, dtype.Float32, sin, c.SeqKV+3, rope.Dims/2)
			submit(t, dev, &c, apart)
			submit(t, dev, &c, fused)
			require.True(t, sameBits(rows(), elements(t, all)), "%v, %v: rows", rope, format)
			for _, name := range []string{"k", "v"} {
				require.True(t, sameBits(elements(t, apart[name]), elements(t, fused[name])), "%v, %v: %s", rope, format, name)
			}
		}
	}
}

// TestAppendBad has lengths, tables and rows that lead out of the cache.
func TestAppendBad(t *testing.T) {
	dev := vktest.Open(t)
	for _, row := range []struct {
		change func(c *call.Append)
		table  string
		step   int // between the bad entries
		want   string
	}{
		{func(c *call.Append) { c.PageSize, c.Pages = 8, 40 }, "block_table", 8, "attention: decode: a sequence has keys in a page that is none of the cache's 40"},
		{func(c *call.Append) { c.CacheRows = 40 }, "cache_batch_idx", 1, "attention: decode: cache_batch_idx has a row that is none of the cache's 40"},
		{func(c *call.Append) { c.Lens = []int{6, 62, -1, 6} }, "", 0, "attention: decode: a sequence is longer than its cache of 64 keys, or its length is negative"},
	} {
		c := call.Append{Step: call.Step{Decode: call.Decode{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
			Batch: 4, NumHeads: 2, NumKVHeads: 2, SeqQ: 3, SeqKV: 64, HeadDim: 64, DType: dtype.Float16,
		}, NewKeys: 3}, Lens: []int{6, 6, 6, 6}}, RoPE: attention.RoPE{Dims: 64}}}
		row.change(&c)
		x := call.Inputs(&c)
		for b, bad := range []float64{40, -1, math.MaxInt32, math.MinInt32} {
			if row.table != "" {
				x[row.table][b*row.step+row.step/8] = bad // with pages, the entry of the last of three keys
			}
		}
		call.Test(t, dev, &c, x, kit.Forward)
		on := uploaded(t, dev, &c, x)
		submit(t, dev, &c, on)
		require.EqualError(t, attention.DecodeStatus(t.Context(), on["state"], c.DecodeProblem), row.want)
		require.NoError(t, attention.DecodeStatus(t.Context(), on["state"], c.DecodeProblem), "the status is cleared")
	}
}

// TestAppendRefuses has the mistakes of problems and of rows of a table that the host sees.
func TestAppendRefuses(t *testing.T) {
	dev := vktest.Open(t)
	for _, row := range []struct {
		change func(c *call.Append)
		want   string
	}{
		{func(c *call.Append) { c.NewKeys = 0 }, "attention: append: new_keys=0: there is nothing to append"},
		{func(c *call.Append) { c.NewKeys = 41 }, "attention: new_keys=41 is not from 0 to the capacity seq_kv=40"},
		{func(c *call.Append) { c.RoPE.Dims = 66 }, "attention: append: rotary dims=66 are not an even number up to head_dim=64"},
		{func(c *call.Append) { c.RoPE.Dims = 3 }, "attention: append: rotary dims=3 are not an even number up to head_dim=64"},
		{func(c *call.Append) { c.RoPE = attention.RoPE{Interleaved: true} }, "attention: append: rotary interleaved is set, but no dims"},
		{func(c *call.Append) { c.RoPE.Dims = 0 }, "attention: append: q is given, but nothing rotates it"},
		{func(c *call.Append) { c.SeqKV = 41 }, "attention: append: cos has shape [40 32] and strides [32 1], want shape [41 32]"},
		{func(c *call.Append) { c.SeqKV, c.CacheRows = 40, 3 }, "attention: append: cache_batch_idx has no buffer"},
	} {
		c := call.Append{Step: call.Step{Decode: call.Decode{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
			Batch: 3, NumHeads: 4, NumKVHeads: 2, SeqQ: 1, SeqKV: 40, HeadDim: 64, DType: dtype.Float16,
		}, NewKeys: 1}, Lens: []int{0, 7, 39}}, RoPE: attention.RoPE{Dims: 64}}}
		on := uploaded(t, dev, &c, call.Inputs(&c))
		row.change(&c)
		refuse(t, dev, row.want, c.Host().Bind(on, nil, kit.Forward))
	}
}

// TestAdvanceRefuses has the mistakes that the host sees; drawn calls of append advance lengths.
func TestAdvanceRefuses(t *testing.T) {
	dev := vktest.Open(t)
	lens := vktest.Tensor(t, dev, dtype.Int32, 3)
	refuse(t, dev, "attention: advance: seq_lens is float32, want int32", func(c *vk.Cmd) error {
		return attention.Advance(c, vk.View(lens.Buffer, dtype.Float32, 3), 1)
	})
	refuse(t, dev, "attention: advance: keys=2147483648 is not from", func(c *vk.Cmd) error { return attention.Advance(c, lens, 1<<31) })
}
