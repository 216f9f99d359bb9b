package attention_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// cache8 is a cache of 8 bits with one sequence and one head, and keys that are appended to it.
type cache8 struct {
	p attention.AppendProblem
	t attention.AppendTensors
}

func newCache8(t *testing.T, dev *vk.Device, format attention.CacheFormat, keys int) *cache8 {
	p := attention.AppendProblem{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
		Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: keys, HeadDim: 64, DType: dtype.BFloat16,
	}, NewKeys: keys, Cache: format}}
	tensor := func(f dtype.DType, shape []int) vk.Tensor { return vktest.Values[float32](t, dev, f, nil, shape...) }
	return &cache8{p, attention.AppendTensors{
		NewK: tensor(p.DType, p.NewKShape()), NewV: tensor(p.DType, p.NewVShape()),
		K: tensor(p.CacheDType(), p.KShape()), V: tensor(p.CacheDType(), p.VShape()),
		KScale: tensor(p.ScaleDType(), p.KScaleShape()), VScale: tensor(p.ScaleDType(), p.VScaleShape()),
		SeqLens: tensor(dtype.Int32, p.SeqLensShape()), State: tensor(dtype.Int32, p.StateShape()),
	}}
}

// append stores rows as keys and as values, and returns what is in the cache then, bytes and scales.
func (x *cache8) append(t *testing.T, dev *vk.Device, rows []float32) (stored []byte, scales []float32) {
	require.NoError(t, x.t.NewK.Upload(t.Context(), rows))
	require.NoError(t, x.t.NewV.Upload(t.Context(), rows))
	require.NoError(t, dev.Run(t.Context(), "append", func(c *vk.Cmd) error { return attention.Append(c, x.t, x.p) }))
	stored, values := make([]byte, len(rows)), make([]byte, len(rows))
	require.NoError(t, x.t.K.DownloadRaw(t.Context(), stored))
	require.NoError(t, x.t.V.DownloadRaw(t.Context(), values))
	require.Equal(t, stored, values)
	if x.t.KScale.IsZero() {
		return stored, nil
	}
	return stored, elements(t, x.t.KScale)
}

// TestCache8Limits stores values that the formats do not have.
func TestCache8Limits(t *testing.T) {
	dev := vktest.Open(t)
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	rows := make([]float32, 64)
	copy(rows, []float32{nan, inf, -inf, 448, 456, -1e30, 0x1p-9, 0x1p-10, 0x3p-10, -0x1p-20, 17, 19})
	x := newCache8(t, dev, attention.CacheE4M3, 1)
	x.t.KScale, x.t.VScale = vk.Tensor{}, vk.Tensor{}
	stored, _ := x.append(t, dev, rows)
	require.Equal(t, byte(0x7f), stored[0]&0x7f)
	require.Equal(t, []byte{0x7e, 0xfe, 0x7e, 0x7e, 0xfe, 1, 0, 2, 0x80, 0x58, 0x5a, 0}, stored[1:13])

	x = newCache8(t, dev, attention.CacheQ8_0, 1)
	copy(rows, []float32{nan, inf, -inf, 1e30, 515, -515, 0, 0, 0, 0, 0, 0})
	copy(rows[32:], []float32{127, 0.5, 1.5, 2.5, -0.5, -1.5})
	stored, scales := x.append(t, dev, rows)
	require.Equal(t, []float32{515.5, 1}, scales)
	require.Equal(t, []byte{0, 127, 0x81, 127, 1, 0xff, 0, 0}, stored[:8])
	require.Equal(t, []byte{127, 0, 2, 2, 0, 0xfe, 0, 0}, stored[32:40], "ties to even")
}

// TestCache8Refuses has the layouts of 8-bit rows and their scales that the host refuses.
func TestCache8Refuses(t *testing.T) {
	dev := vktest.Open(t)
	for _, row := range []struct {
		format attention.CacheFormat
		change func(t *attention.AppendTensors)
		want   string
	}{
		{attention.CacheE4M3, func(x *attention.AppendTensors) { x.K.Offset += 4 },
			"k has strides [384 384 64 1] and offset 4: rows of a cache of e4m3 begin at multiples of 8"},
		{attention.CacheQ8_0, func(x *attention.AppendTensors) { x.K.Strides = []int{384, 384, 128, 1} }, "k_scale has strides [12 12 2 1], want the strides [384 384 128 1] of k, divided by 32"},
	} {
		x := newCache8(t, dev, row.format, 6)
		x.p.NewKeys, x.p.SeqKV = 3, 3
		for _, y := range []*vk.Tensor{&x.t.NewK, &x.t.NewV, &x.t.K, &x.t.V, &x.t.KScale, &x.t.VScale} {
			if len(y.Shape) == 4 {
				*y = y.Slice(2, 0, 3)
			}
		}
		row.change(&x.t)
		refuse(t, dev, "attention: append: "+row.want, func(c *vk.Cmd) error { return attention.Append(c, x.t, x.p) })
	}
}
