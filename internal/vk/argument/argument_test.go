package argument

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestCheck checks right and wrong calls with two inputs and two outputs.
func TestCheck(t *testing.T) {
	d := vktest.Open(t)
	b, err := d.NewBuffer("b", 4*64)
	require.NoError(t, err)
	t.Cleanup(b.Close)
	other, err := d.NewBuffer("other", 4*64)
	require.NoError(t, err)
	t.Cleanup(other.Close)
	at := func(b *vk.Buffer, offset int) vk.Tensor {
		x := vk.View(b, dtype.Float32, 2, 4)
		x.Offset = offset
		return x
	}
	slice, err := b.Slice(4*48, 4*16)
	require.NoError(t, err)
	shape := []int{2, 4}
	for _, c := range []struct {
		change func(in, out []Argument)
		want   string
	}{
		{func(in, out []Argument) {}, ""},
		{func(in, out []Argument) { in[1].Tensor = in[0].Tensor }, ""}, // inputs may share memory
		{func(in, out []Argument) { out[1] = New("z", vk.Tensor{}, false, dtype.Float32, shape) }, ""},
		{func(in, out []Argument) { out[1].present = false }, "k: z is given, but the problem has none"},
		{func(in, out []Argument) { in[0].Tensor = vk.Tensor{} }, "k: a has no buffer"},
		{func(in, out []Argument) { in[0].wantType = dtype.Float16 }, "k: a is float32, want float16"},
		{func(in, out []Argument) { in[0].wantShape = []int{8} }, "k: a has shape [2 4] and strides [4 1], want shape [8]"},
		{func(in, out []Argument) { in[0].Strides = []int{8, 2} }, "k: a has strides [8 2]: the last axis is not contiguous"},
		{func(in, out []Argument) { in[0].Strides = []int{8, 2}; in[0] = in[0].Strided() }, ""},
		{func(in, out []Argument) { in[0].Offset = 60 }, "k: a: vk: tensor with shape [2 4], strides [4 1], offset 60 of float32 is outside buffer"},
		{func(in, out []Argument) { out[0].Strides = []int{3, 1} }, "k: y has strides [3 1] for shape [2 4]: elements of an output may not share memory"},
		{func(in, out []Argument) { out[0].Tensor = at(b, 7) }, "k: y overlaps a: outputs need memory of their own"},
		{func(in, out []Argument) { out[0].Tensor = at(b, 8) }, ""},
		{func(in, out []Argument) { out[0].Tensor = out[1].Tensor }, "k: z overlaps y: outputs need memory of their own"},
		{func(in, out []Argument) { in[1].Tensor, out[0].Tensor = at(slice, 4), at(slice, 0) }, "k: y overlaps b: outputs need memory of their own"},
		{func(in, out []Argument) { in[1].Tensor, out[0].Tensor = at(slice, 8), at(slice, 0) }, ""},
		{func(in, out []Argument) { in[0].Tensor, out[0].Tensor = at(b, 55), at(slice, 0) }, "k: y overlaps a: outputs need memory of their own"},
		{func(in, out []Argument) {
			b := out[1].Tensor
			b.Strides = []int{32, 1}
			out[0].Tensor = b
			out[0].Offset = 4
		}, "k: z overlaps y: outputs need memory of their own"},
	} {
		in := []Argument{New("a", at(b, 0), true, dtype.Float32, shape), New("b", at(b, 40), true, dtype.Float32, shape)}
		out := []Argument{New("y", at(other, 0), true, dtype.Float32, shape), New("z", at(other, 8), true, dtype.Float32, shape)}
		c.change(in, out)
		err := Check("k", in, out)
		if c.want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, c.want)
		}
	}
}

// TestBesides has parts of the same rows, and what only looks so.
func TestBesides(t *testing.T) {
	d := vktest.Open(t)
	b, err := d.NewBuffer("b", 4*1024)
	require.NoError(t, err)
	t.Cleanup(b.Close)
	// Rows of a product: 3 sequences, 5 tokens, 4 heads of Q and 2 of K with 8 columns.
	part := func(offset, heads int, strides ...int) vk.Tensor {
		return vk.Tensor{Buffer: b, DType: dtype.Float32, Shape: []int{3, heads, 5, 8}, Strides: strides, Offset: offset}
	}
	const token, seq = 48, 5 * 48
	q := part(0, 4, seq, 8, token, 1)
	for _, c := range []struct {
		name  string
		k     vk.Tensor
		apart bool
	}{
		{"after q", part(32, 2, seq, 8, token, 1), true},
		{"before the next q", part(33, 2, seq, 8, token, 1), false},
		{"in q", part(31, 2, seq, 8, token, 1), false},
		{"as many heads, rows too short", part(32, 4, seq, 8, token, 1), false},
		{"other steps", part(32, 2, seq, 8, token-8, 1), false},
		{"other sequences", part(32, 2, seq+token, 8, token, 1), false},
		{"every second column", part(1, 4, seq, 8, token, 1), false},
	} {
		for _, swap := range []bool{false, true} {
			x, y := New("q", q, true, q.DType, q.Shape), New("k", c.k, true, q.DType, c.k.Shape)
			if swap {
				x, y = y, x
			}
			require.Equal(t, c.apart, !x.overlaps(&y), c.name)
			require.True(t, !c.apart || !share(x.Tensor, y.Tensor), c.name)
		}
	}
}

// share reports whether two tensors of a buffer have an element in common.
func share(x, y vk.Tensor) bool {
	seen := map[int]bool{}
	each := func(t vk.Tensor, f func(at int)) {
		for b := range t.Shape[0] {
			for h := range t.Shape[1] {
				for s := range t.Shape[2] {
					for e := range t.Shape[3] {
						f(t.Offset + b*t.Strides[0] + h*t.Strides[1] + s*t.Strides[2] + e*t.Strides[3])
					}
				}
			}
		}
	}
	each(x, func(at int) { seen[at] = true })
	common := false
	each(y, func(at int) { common = common || seen[at] })
	return common
}
