package attention_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// vector returns one on the device.
func vector(t *testing.T, d *vk.Device, x ...int32) vk.Tensor {
	t.Helper()
	v := newTensor(t, d, dtype.Int32, []int{len(x)})
	require.NoError(t, v.UploadInts(context.Background(), x))
	return v
}

// TestPageTable has the example of the documentation, and lists that are none.
func TestPageTable(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	p := attention.DecodeProblem{PageSize: 8, Pages: 9, NewKeys: 2}
	p.Problem = attention.Problem{NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 16, HeadDim: 8, DType: dtype.Float32}
	const wrong = "attention: decode: a sequence is longer than its cache of 16 keys, or its length is negative"
	for _, c := range []struct {
		name                  string
		indptr, indices, last []int32
		newKeys               int
		wantTable, wantLens   []int32
		status                string
	}{
		{"the example", []int32{0, 2, 3, 3}, []int32{7, 4, 1}, []int32{5, 2, 0}, 2, []int32{7, 4, 1, -1, -1, -1}, []int32{11, 0, -1}, wrong},
		{"no new keys", []int32{1, 3, 3, 4}, []int32{9, 7, 4, 1}, []int32{8, 77, 1}, 0, []int32{7, 4, -1, -1, 1, -1}, []int32{16, 0, 1}, ""},
		{"down", []int32{2, 1}, []int32{5, 6, 7}, []int32{1}, 0, []int32{-1, -1}, []int32{-1}, wrong},
		{"negative", []int32{-1, 1}, []int32{5, 6, 7}, []int32{1}, 0, []int32{-1, -1}, []int32{-1}, wrong},
		{"beyond the end", []int32{2, 4}, []int32{5, 6, 7}, []int32{1}, 0, []int32{-1, -1}, []int32{-1}, wrong},
		{"too long", []int32{0, 3}, []int32{5, 6, 7}, []int32{1}, 0, []int32{-1, -1}, []int32{-1}, wrong},
		{"the last is empty", []int32{0, 2}, []int32{5, 6, 7}, []int32{0}, 0, []int32{-1, -1}, []int32{-1}, wrong},
		{"the last is too full", []int32{0, 2}, []int32{5, 6, 7}, []int32{9}, 0, []int32{-1, -1}, []int32{-1}, wrong},
	} {
		p.Batch, p.NewKeys = len(c.last), c.newKeys
		x := attention.PageTableTensors{
			Indptr: vector(t, d, c.indptr...), Indices: vector(t, d, c.indices...), LastPageLen: vector(t, d, c.last...),
			BlockTable: newTensor(t, d, dtype.Int32, p.BlockTableShape()), SeqLens: newTensor(t, d, dtype.Int32, p.SeqLensShape()), State: vector(t, d, 0),
		}
		cmd, err := d.NewCmd("page table")
		require.NoError(t, err)
		defer cmd.Close()
		require.NoError(t, attention.PageTable(cmd, x, p), c.name)
		require.NoError(t, cmd.Submit(ctx))
		require.Equal(t, c.wantTable, ints(t, x.BlockTable), c.name)
		require.Equal(t, c.wantLens, ints(t, x.SeqLens), c.name)
		err = attention.DecodeStatus(ctx, x.State, p)
		if c.status == "" {
			require.NoError(t, err, c.name)
		} else {
			require.EqualError(t, err, c.status, c.name)
		}
	}
}

// TestPageTableRefuses has problems and tensors that do not fit.
func TestPageTableRefuses(t *testing.T) {
	d := vktest.Open(t)
	good := attention.DecodeProblem{PageSize: 8, Pages: 9}
	good.Problem = attention.Problem{Batch: 2, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 16, HeadDim: 8, DType: dtype.Float32}
	for _, c := range []struct {
		change func(x *attention.PageTableTensors, p *attention.DecodeProblem)
		want   string
	}{
		{func(_ *attention.PageTableTensors, p *attention.DecodeProblem) { p.PageSize, p.Pages = 0, 0 }, "attention: page table: page_size=0: a cache without pages has no table"},
		{func(_ *attention.PageTableTensors, p *attention.DecodeProblem) { p.PageSize = 7 }, "attention: page_size=7 is not a power of two from 8"},
		{func(x *attention.PageTableTensors, _ *attention.DecodeProblem) { x.Indptr = vector(t, d, 0, 1) }, "attention: page table: indptr has shape [2] and strides [1], want shape [3]"},
		{func(x *attention.PageTableTensors, _ *attention.DecodeProblem) { x.Indices = vk.Tensor{} }, "attention: page table: indices and state have shapes [] and [1], want vectors"},
		{func(x *attention.PageTableTensors, _ *attention.DecodeProblem) {
			x.BlockTable = x.BlockTable.Slice(1, 0, 1)
		}, "attention: page table: block_table has shape [2 1] and strides [2 1], want shape [2 2]"},
		{func(x *attention.PageTableTensors, _ *attention.DecodeProblem) { x.SeqLens = x.LastPageLen }, "attention: page table: seq_lens overlaps last_page_len: outputs need memory of their own"},
	} {
		p := good
		x := attention.PageTableTensors{
			Indptr: vector(t, d, 0, 1, 2), Indices: vector(t, d, 3, 4), LastPageLen: vector(t, d, 1, 2),
			BlockTable: newTensor(t, d, dtype.Int32, p.BlockTableShape()), SeqLens: newTensor(t, d, dtype.Int32, p.SeqLensShape()), State: vector(t, d, 0),
		}
		c.change(&x, &p)
		cmd, err := d.NewCmd("page table")
		require.NoError(t, err)
		require.EqualError(t, attention.PageTable(cmd, x, p), c.want)
		cmd.Close()
	}
}

// TestPageLists wants the lists of a cache to make its own table again.
func TestPageLists(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	config := attention.KVCacheConfig{DecodeProblem: attention.DecodeProblem{PageSize: 8, Pages: 12}}
	config.Problem = attention.Problem{Batch: 3, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 32, HeadDim: 8, DType: dtype.Float32}
	k, err := attention.NewKVCache(ctx, d, config)
	require.NoError(t, err)
	defer k.Close()
	require.NoError(t, k.Reserve(ctx, 9))
	lens := []int{9, 0, 16}
	require.NoError(t, k.Reserve(ctx, 16))
	indptr, indices, last, err := k.PageLists(lens)
	require.NoError(t, err)
	require.Equal(t, []int32{0, 2, 2, 4}, indptr)
	require.Equal(t, []int32{1, 0, 8}, last)
	own := ints(t, k.BlockTable)
	require.Equal(t, []int32{own[0], own[1], own[8], own[9]}, indices)
	for _, c := range []struct {
		lens []int
		want string
	}{
		{[]int{1}, "attention: cache: 1 lengths of 3 sequences"},
		{[]int{17, 0, 0}, "attention: cache: sequence 0 has no pages for 17 keys"},
		{[]int{0, -1, 0}, "attention: cache: sequence 1 has no pages for -1 keys"},
	} {
		_, _, _, err := k.PageLists(c.lens)
		require.EqualError(t, err, c.want)
	}
	config.PageSize, config.Pages = 0, 0
	rows, err := attention.NewKVCache(ctx, d, config)
	require.NoError(t, err)
	defer rows.Close()
	_, _, _, err = rows.PageLists(lens)
	require.EqualError(t, err, "attention: cache: it has no pages")
}
