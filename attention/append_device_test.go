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
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// An appendCase is a problem with the lengths of its sequences.
type appendCase struct {
	attention.AppendProblem
	lens  []int // SeqLens, also such as there cannot be
	noQ   bool
	fused bool // Q, NewK and NewV are parts of the same rows
	nhd   bool // (…, keys, heads, dim) in memory
	odd   bool // tensors begin one element late
}

func appendCases() []appendCase {
	problem := func(heads, kv, seqQ, capacity, dim int, rope attention.RoPE, change func(c *appendCase), lens ...int) appendCase {
		c := appendCase{AppendProblem: attention.AppendProblem{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
			Batch: len(lens), NumHeads: heads, NumKVHeads: kv, SeqQ: seqQ, SeqKV: capacity, HeadDim: dim, DType: dtype.Float16,
		}, NewKeys: seqQ}, RoPE: rope}, lens: lens}
		if change != nil {
			change(&c)
		}
		return c
	}
	type A = appendCase
	halves, neighbours := attention.RoPE{Dims: 64}, attention.RoPE{Dims: 64, Interleaved: true}
	return []appendCase{
		problem(4, 2, 1, 40, 64, halves, nil, 0, 7, 39),
		problem(4, 2, 1, 40, 64, neighbours, nil, 0, 7, 39),
		problem(4, 2, 3, 40, 64, attention.RoPE{}, nil, 0, 7, 37),
		problem(4, 2, 5, 64, 128, halves, func(c *A) { c.DType = dtype.BFloat16 }, 9, 59),
		problem(4, 2, 5, 64, 128, neighbours, func(c *A) { c.DType, c.nhd = dtype.BFloat16, true }, 9, 59),
		problem(4, 2, 5, 64, 72, halves, func(c *A) { c.DType = dtype.Float32 }, 9, 59),
		problem(4, 2, 5, 64, 72, neighbours, func(c *A) { c.DType, c.nhd = dtype.Float32, true }, 9, 59),
		problem(4, 2, 2, 64, 32, attention.RoPE{Dims: 12, Interleaved: true}, func(c *A) { c.DType = dtype.Float32 }, 9, 59),
		problem(3, 3, 2, 64, 32, attention.RoPE{Dims: 10}, nil, 9, 59),
		problem(3, 3, 2, 64, 32, attention.RoPE{Dims: 10, Interleaved: true}, nil, 9, 59),
		problem(3, 3, 2, 64, 32, attention.RoPE{Dims: 32}, func(c *A) { c.ValueDim, c.odd = 24, true }, 9, 59),
		problem(2, 1, 7, 64, 24, attention.RoPE{Dims: 16}, func(c *A) { c.noQ, c.NewKeys = true, 30 }, 0, 34),
		problem(2, 1, 7, 64, 24, attention.RoPE{Dims: 16}, func(c *A) { c.NewKeys = 3 }, 0, 34), // the first queries are before the sequence
		problem(6, 2, 4, 64, 64, halves, func(c *A) { c.fused = true }, 0, 30, 60),
		problem(4, 2, 3, 64, 64, halves, func(c *A) { c.PageSize, c.Pages, c.nhd = 8, 40, true }, 0, 6, 61, 17),
		problem(4, 2, 40, 64, 64, neighbours, func(c *A) { c.PageSize, c.Pages = 16, 30 }, 0, 6, 24),
		problem(4, 2, 1, 64, 64, halves, func(c *A) { c.CacheRows = 7 }, 0, 6, 63),
		problem(4, 2, 1, 64, 64, halves, nil, 64, 63, -1, 5, 1000, math.MinInt32, math.MaxInt32), // full, negative
		problem(4, 2, 30, 64, 64, halves, func(c *A) { c.PageSize, c.Pages = 16, 30 }, 35, 34, -1),
	}
}

// An appendRun is a case on a device, with what is in memory before.
type appendRun struct {
	c           *appendCase
	t           attention.AppendTensors
	whole       []vk.Tensor // the buffers of K, V, Q, State and lengths, contiguous
	before      [][]float32
	table, rows []int32
	cos, sin    []float32
}

// untouched is what is around tensors, and in a cache: a number that no key has.
const untouched = 77

// tensor makes a tensor amid canaries, (batch, keys, heads, dim) in memory if nhd, full of canaries too
// without r.
func (x *appendRun) tensor(t *testing.T, dev *vk.Device, r *rand.Rand, f dtype.DType, shape []int, nhd bool) vk.Tensor {
	const around = 64
	first := around
	if x.c.odd {
		first++
	}
	data := make([]float32, size(shape)+2*around)
	for i := range data {
		data[i] = untouched
		if r != nil && i >= first && i < first+size(shape) {
			data[i] = f.Round(float32(r.NormFloat64()))
		}
	}
	whole := vktest.Tensor(t, dev, f, len(data))
	require.NoError(t, whole.Upload(t.Context(), data))
	x.whole, x.before = append(x.whole, whole), append(x.before, data)
	memory := shape
	if nhd {
		memory = []int{shape[0], shape[2], shape[1], shape[3]}
	}
	v := vk.View(whole.Buffer, f, memory...)
	v.Offset = first
	if nhd {
		v = v.Permute(0, 2, 1, 3)
	}
	return v
}

func newAppendRun(t *testing.T, dev *vk.Device, c *appendCase) *appendRun {
	p := &c.AppendProblem
	r := rand.New(rand.NewPCG(2, uint64(p.HeadDim)))
	x := &appendRun{c: c}
	tensor := func(f dtype.DType, shape []int, nhd, random bool) vk.Tensor {
		if random {
			return x.tensor(t, dev, r, f, shape, nhd)
		}
		return x.tensor(t, dev, nil, f, shape, nhd)
	}
	ints := func(shape []int, data []int32) vk.Tensor {
		v := vktest.Tensor(t, dev, dtype.Int32, shape...)
		require.NoError(t, v.UploadInts(t.Context(), data))
		return v
	}
	x.t.K, x.t.V = tensor(p.DType, p.KShape(), c.nhd, false), tensor(p.DType, p.VShape(), c.nhd, false)
	switch {
	case c.fused:
		heads := p.NumHeads + 2*p.NumKVHeads
		all := tensor(p.DType, []int{p.Batch, heads, p.SeqQ, p.HeadDim}, true, true)
		x.t.Q = all.Slice(1, 0, p.NumHeads)
		x.t.NewK, x.t.NewV = all.Slice(1, p.NumHeads, p.NumHeads+p.NumKVHeads), all.Slice(1, p.NumHeads+p.NumKVHeads, heads)
	default:
		x.t.NewK, x.t.NewV = tensor(p.DType, p.NewKShape(), !c.nhd, true), tensor(p.DType, p.NewVShape(), c.nhd, true)
		if p.RoPE.Dims > 0 && !c.noQ {
			x.t.Q = tensor(p.DType, p.QShape(), !c.nhd, true)
		}
	}
	if d := p.RoPE.Dims; d > 0 {
		x.cos, x.sin = attention.RoPETable(p.SeqKV+3, d, 100)
		x.t.Cos, x.t.Sin = tensor(dtype.Float32, []int{p.SeqKV + 3, d / 2}, false, false), tensor(dtype.Float32, []int{p.SeqKV + 3, d / 2}, false, false)
		require.NoError(t, x.t.Cos.Upload(t.Context(), x.cos))
		require.NoError(t, x.t.Sin.Upload(t.Context(), x.sin))
		n := len(x.whole)
		x.whole, x.before = x.whole[:n-2], x.before[:n-2]
	}
	lens := make([]int32, p.Batch)
	for b := range lens {
		lens[b] = int32(c.lens[b])
	}
	x.t.SeqLens, x.t.State = ints(p.SeqLensShape(), lens), ints(p.StateShape(), make([]int32, size(p.StateShape())))
	if p.PageSize > 0 {
		each := p.SeqKV / p.PageSize
		for _, page := range r.Perm(p.Pages)[:p.Batch*each] {
			x.table = append(x.table, int32(page))
		}
		x.t.BlockTable = ints(p.BlockTableShape(), x.table)
	}
	if p.CacheRows > 0 {
		for _, row := range r.Perm(p.CacheRows)[:p.Batch] {
			x.rows = append(x.rows, int32(row))
		}
		x.t.CacheBatchIdx = ints(p.SeqLensShape(), x.rows)
	}
	return x
}

// run records and runs Append, and returns what it left in each of the buffers.
func (x *appendRun) run(t *testing.T, dev *vk.Device) [][]float32 {
	cmd, err := dev.NewCmd("append")
	require.NoError(t, err)
	t.Cleanup(cmd.Close)
	require.NoError(t, attention.Append(cmd, x.t, x.c.AppendProblem))
	require.NoError(t, cmd.Submit(t.Context()))
	var after [][]float32
	for i, whole := range x.whole {
		data := make([]float32, len(x.before[i]))
		require.NoError(t, whole.Download(t.Context(), data))
		after = append(after, data)
	}
	return after
}

// at returns the index of an element of a tensor in its buffer.
func at(t *vk.Tensor, index ...int) int {
	n := t.Offset
	for i, x := range index {
		n += x * t.Strides[i]
	}
	return n
}

// want returns what must be in the buffers of the tensors, as whole has them.
func (x *appendRun) want() map[*vk.Buffer][]float64 {
	p := &x.c.AppendProblem
	w, before := map[*vk.Buffer][]float64{}, map[*vk.Buffer][]float32{}
	for i, whole := range x.whole {
		before[whole.Buffer] = x.before[i]
		for _, f := range x.before[i] {
			w[whole.Buffer] = append(w[whole.Buffer], float64(f))
		}
	}
	row := func(t *vk.Tensor, b, h, i int) []float64 {
		var list []float64
		for e := range t.Shape[3] {
			list = append(list, float64(before[t.Buffer][at(t, b, h, i, e)]))
		}
		return list
	}
	put := func(t *vk.Tensor, row []float64, b, h, i int) {
		for e, f := range row {
			w[t.Buffer][at(t, b, h, i, e)] = f
		}
	}
	key := func(r ref.Row, position int) {
		b, h, i := r.Batch, r.Head, r.Row
		outer, inner := b, position
		if p.PageSize > 0 {
			outer, inner = int(x.table[b*(p.SeqKV/p.PageSize)+position/p.PageSize]), position%p.PageSize
		}
		if p.CacheRows > 0 {
			outer = int(x.rows[b])
		}
		if outer >= 0 && outer < x.t.K.Shape[0] {
			put(&x.t.K, ref.Rotate(p.RoPE, row(&x.t.NewK, b, h, i), x.cos, x.sin, position), outer, h, inner)
			put(&x.t.V, row(&x.t.NewV, b, h, i), outer, h, inner)
		}
	}
	query := func(r ref.Row, position int) {
		if b, h, i := r.Batch, r.Head, r.Row; !x.t.Q.IsZero() {
			put(&x.t.Q, ref.Rotate(p.RoPE, row(&x.t.Q, b, h, i), x.cos, x.sin, position), b, h, i)
		}
	}
	ref.Append(*p, x.c.lens, key, query)
	return w
}

// check compares every element of every buffer, canaries among them, with float64: those that
// nothing rotates are the same.
func (x *appendRun) check(t *testing.T, after [][]float32) {
	ulp := map[dtype.DType]float64{dtype.Float16: 0x1p-11, dtype.BFloat16: 0x1p-8, dtype.Float32: 0x1p-24}[x.c.DType]
	want := x.want()
	for i, whole := range x.whole {
		for e, w := range want[whole.Buffer] {
			got := float64(after[i][e])
			exact := w == float64(x.c.DType.Round(float32(w)))
			if diff := math.Abs(got - w); exact && diff > 4*0x1p-24*(math.Abs(w)+4) || !(diff <= ulp*math.Abs(w)+8*0x1p-24+0x1p-25) {
				t.Fatalf("%s[%d] = %v, want %v, before %v", whole.Buffer.Name(), e, got, w, x.before[i][e])
			}
		}
	}
}

// TestAppend compares with float64, also what is around keys and tensors.
func TestAppend(t *testing.T) {
	dev := vktest.Open(t)
	for _, c := range appendCases() {
		t.Run(fmt.Sprintf("%v/%v/lens=%v", c.DecodeProblem, c.RoPE, c.lens), func(t *testing.T) {
			x := newAppendRun(t, dev, &c)
			x.check(t, x.run(t, dev))
			err := attention.DecodeStatus(t.Context(), x.t.State, c.DecodeProblem)
			if bad := slices.ContainsFunc(c.lens, func(n int) bool { return n < 0 || n+c.NewKeys > c.SeqKV }); bad {
				require.ErrorContains(t, err, fmt.Sprintf("attention: decode: a sequence is longer than its cache of %d keys", c.SeqKV))
			} else {
				require.NoError(t, err)
			}
			require.NoError(t, attention.DecodeStatus(t.Context(), x.t.State, c.DecodeProblem), "the status is cleared")
		})
	}
}

// TestAppendBadPages has tables and rows that lead out of the cache.
func TestAppendBadPages(t *testing.T) {
	dev := vktest.Open(t)
	base := attention.AppendProblem{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
		Batch: 4, NumHeads: 2, NumKVHeads: 2, SeqQ: 3, SeqKV: 64, HeadDim: 64, DType: dtype.Float16,
	}, NewKeys: 3}, RoPE: attention.RoPE{Dims: 64}}
	bad := []int32{40, -1, math.MaxInt32, math.MinInt32}
	for _, paged := range []bool{true, false} {
		c := appendCase{AppendProblem: base, lens: []int{6, 6, 6, 6}}
		want := "attention: decode: a sequence has keys in a page that is none of the cache's 40"
		if paged {
			c.PageSize, c.Pages = 8, 40
		} else {
			c.CacheRows, want = 40, "attention: decode: cache_batch_idx has a row that is none of the cache's 40"
		}
		x := newAppendRun(t, dev, &c)
		if paged {
			for b, page := range bad {
				x.table[b*8+1] = page // of the last of three keys
			}
			require.NoError(t, x.t.BlockTable.UploadInts(t.Context(), x.table))
		} else {
			copy(x.rows, bad)
			require.NoError(t, x.t.CacheBatchIdx.UploadInts(t.Context(), x.rows))
		}
		after := x.run(t, dev)
		if !paged { // queries of such a sequence are left, too
			x.t.Q = vk.Tensor{}
		}
		x.check(t, after)
		require.EqualError(t, attention.DecodeStatus(t.Context(), x.t.State, c.DecodeProblem), want)
	}
}

// TestAppendRefuses has what the host sees.
func TestAppendRefuses(t *testing.T) {
	dev := vktest.Open(t)
	c := appendCases()[0]
	x := newAppendRun(t, dev, &c)
	short := vk.View(x.t.Cos.Buffer, dtype.Float32, c.SeqKV-1, 32)
	for _, row := range []struct {
		change func(t *attention.AppendTensors, p *attention.AppendProblem)
		want   string
	}{
		{func(_ *attention.AppendTensors, p *attention.AppendProblem) { p.NewKeys = 0 }, "attention: append: new_keys=0: there is nothing to append"},
		{func(_ *attention.AppendTensors, p *attention.AppendProblem) { p.NewKeys = 41 }, "attention: new_keys=41 is not from 0 to the capacity seq_kv=40"},
		{func(_ *attention.AppendTensors, p *attention.AppendProblem) { p.RoPE.Dims = 66 }, "attention: append: rotary dims=66 are not an even number up to head_dim=64"},
		{func(_ *attention.AppendTensors, p *attention.AppendProblem) { p.RoPE.Dims = 3 }, "attention: append: rotary dims=3 are not an even number up to head_dim=64"},
		{func(_ *attention.AppendTensors, p *attention.AppendProblem) {
			p.RoPE = attention.RoPE{Interleaved: true}
		}, "attention: append: rotary interleaved is set, but no dims"},
		{func(_ *attention.AppendTensors, p *attention.AppendProblem) { p.RoPE.Dims = 0 }, "attention: append: q is given, but nothing rotates it"},
		{func(t *attention.AppendTensors, _ *attention.AppendProblem) { t.Cos = vk.Tensor{} }, "attention: append: cos has no buffer"},
		{func(t *attention.AppendTensors, _ *attention.AppendProblem) { t.Cos, t.Sin = short, short }, "attention: append: cos has shape [39 32] and strides [32 1], want shape [40 32]"},
		{func(t *attention.AppendTensors, _ *attention.AppendProblem) { t.Q = t.NewK }, "attention: append: q has shape"},
		{func(t *attention.AppendTensors, _ *attention.AppendProblem) { t.K = t.V; t.V = t.K }, "attention: append: v overlaps k: outputs need memory of their own"},
		{func(t *attention.AppendTensors, _ *attention.AppendProblem) { t.State = vk.Tensor{} }, "attention: append: state has shape []"},
		{func(t *attention.AppendTensors, _ *attention.AppendProblem) { t.BlockTable = t.SeqLens }, "attention: append: block_table is given, but the problem has none"},
	} {
		tensors, p := x.t, c.AppendProblem
		row.change(&tensors, &p)
		cmd, err := dev.NewCmd("append")
		require.NoError(t, err)
		require.ErrorContains(t, attention.Append(cmd, tensors, p), row.want)
		require.ErrorContains(t, cmd.Submit(t.Context()), row.want)
		cmd.Close()
	}
}

// TestAdvance adds to lengths on the device, and to nothing else.
func TestAdvance(t *testing.T) {
	dev := vktest.Open(t)
	all := vktest.Tensor(t, dev, dtype.Int32, 300)
	require.NoError(t, all.Zero(t.Context()))
	cmd, err := dev.NewCmd("advance")
	require.NoError(t, err)
	t.Cleanup(cmd.Close)
	require.NoError(t, attention.Advance(cmd, all.Slice(0, 3, 203), 5))
	require.NoError(t, attention.Advance(cmd, all.Slice(0, 3, 203), -2))
	for n := 1; n <= 3; n++ {
		require.NoError(t, cmd.Submit(t.Context()))
		raw := make([]byte, 4*300)
		require.NoError(t, all.DownloadRaw(t.Context(), raw))
		for i := range 300 {
			want := byte(0)
			if i >= 3 && i < 203 {
				want = byte(3 * n)
			}
			require.Equal(t, want, raw[4*i], "length %d", i)
		}
	}
	bad, err := dev.NewCmd("advance")
	require.NoError(t, err)
	t.Cleanup(bad.Close)
	require.ErrorContains(t, attention.Advance(bad, vk.View(all.Buffer, dtype.Float32, 3), 1), "attention: advance: seq_lens is float32, want int32")
	require.ErrorContains(t, attention.Advance(bad, all, 1<<31), "attention: advance: keys=2147483648 is not from")
}

// TestRoPETable compares with what the paper says.
func TestRoPETable(t *testing.T) {
	cos, sin := attention.RoPETable(5, 6, 1000)
	for p := range 5 {
		for i, turn := range []float64{1, 0.1, 0.01} {
			require.InDelta(t, math.Cos(float64(p)*turn), float64(cos[p*3+i]), 1e-7)
			require.InDelta(t, math.Sin(float64(p)*turn), float64(sin[p*3+i]), 1e-7)
		}
	}
	require.Panics(t, func() { attention.RoPETable(5, 3, 1000) })
	require.Panics(t, func() { attention.RoPETable(0, 4, 1000) })
}
