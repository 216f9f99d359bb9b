package vk_test

import (
	"bytes"
	"math"
	"math/rand"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestTensorRaw: lengths and masks go as bytes, and are not taken for numbers.
func TestTensorRaw(t *testing.T) {
	d := vktest.Open(t)
	mask := must(d.NewTensor("mask", dtype.Bool, 3))
	t.Cleanup(mask.Close)
	lengths := must(d.NewTensor("lengths", dtype.Int32, 2))
	t.Cleanup(lengths.Close)
	require.NoError(t, mask.UploadBools(background(), []bool{true, false, true}))
	require.NoError(t, lengths.UploadInts(background(), []int32{-1, 258}))
	for x, want := range map[*vk.Tensor][]byte{&mask: {1, 0, 1}, &lengths: {255, 255, 255, 255, 2, 1, 0, 0}} {
		got := make([]byte, len(want))
		require.NoError(t, x.DownloadRaw(background(), got))
		require.Equal(t, want, got)
		require.NoError(t, x.Zero(background()))
		require.NoError(t, x.UploadRaw(background(), want))
		require.NoError(t, x.DownloadRaw(background(), got))
		require.Equal(t, want, got)
		floats, rule := make([]float32, x.NumElements()), "as float32: a tensor of "+x.DType.String()+" has no floats"
		wantError(t, "Upload", x.Upload(background(), floats), "vk: upload "+rule)
		wantError(t, "Download", x.Download(background(), floats), "vk: download "+rule)
	}
	words := make([]int32, 2)
	require.NoError(t, lengths.DownloadInts(background(), words))
	require.Equal(t, []int32{-1, 258}, words)
	wantError(t, "ints", mask.UploadInts(background(), []int32{1, 2, 3}), "upload of bool as int32")
	wantError(t, "bools", lengths.UploadBools(background(), []bool{true, true}), "upload of int32 as bools")
	wantError(t, "ints", mask.DownloadInts(background(), make([]int32, 3)), "download of bool as int32")
	wantError(t, "too few", lengths.UploadInts(background(), []int32{1}), "length")
}

// TestTensorViews writes through every kind of view, values and zeros, and looks at the memory.
func TestTensorViews(t *testing.T) {
	d := vktest.Open(t)
	const memory = 24
	for _, format := range dtype.All() {
		b := newBuffer(t, d, "memory", memory*int64(format.Size()))
		all := vk.View(b, format, memory)
		for _, c := range []struct {
			name    string
			shape   []int
			strides []int
			offset  int
		}{
			{"scalar", nil, nil, 5},
			{"row", []int{6}, []int{1}, 3},
			{"every other", []int{6}, []int{2}, 1},
			{"padded rows", []int{3, 4}, []int{7, 1}, 2},
			{"transposed", []int{4, 6}, []int{1, 4}, 0},
			{"transposed, gaps", []int{3, 2}, []int{2, 11}, 1},
			{"3-D, axes exchanged", []int{2, 3, 4}, []int{4, 8, 1}, 0},
			{"dimensions of 1", []int{1, 5, 1}, []int{99, 1, 77}, 19},
			{"far apart", []int{2, 2}, []int{1, 20}, 1},
			{"rows between one another", []int{2, 3}, []int{3, 2}, 2},
			{"gaps of two kinds", []int{2, 2, 2}, []int{9, 4, 2}, 3},
			{"last element", []int{1}, []int{1}, memory - 1},
		} {
			view := vk.Tensor{Buffer: b, DType: format, Shape: c.shape, Strides: c.strides, Offset: c.offset}
			require.NoError(t, view.Validate(), c.name)
			want := make([]float32, memory)
			for i := range want {
				want[i] = float32(-1 - i)
			}
			require.NoError(t, all.Upload(background(), want))
			data := make([]float32, view.NumElements())
			at := make([]int, len(data))
			for i := range data {
				data[i], at[i] = float32(100+i), c.offset
				for axis, rest := len(c.shape)-1, i; axis >= 0; axis-- {
					at[i] += rest % c.shape[axis] * c.strides[axis]
					rest /= c.shape[axis]
				}
				want[at[i]] = data[i]
			}
			require.NoError(t, view.Upload(background(), data))
			require.Equal(t, want, download(t, all), c.name)
			require.Equal(t, data, download(t, view), c.name)
			for _, i := range at {
				want[i] = 0
			}
			require.NoError(t, view.Zero(background()))
			require.Equal(t, want, download(t, all), c.name)
		}
	}
}

func TestPermute(t *testing.T) {
	d := vktest.Open(t)
	x := tensor(t, d, "x", make([]float32, 6)...)
	x.Shape, x.Strides = []int{2, 3}, []int{3, 1}
	require.NoError(t, x.Permute(1, 0).Upload(background(), []float32{1, 4, 2, 5, 3, 6}))
	wantTensor(t, x, 1, 2, 3, 4, 5, 6)
	require.False(t, x.Permute(1, 0).Contiguous())
	require.True(t, x.Permute(1, 0).Permute(1, 0).Contiguous())
	for _, axes := range [][]int{{0}, {0, 0}, {0, 2}, {-1, 0}, {0, 1, 2}} {
		require.Panics(t, func() { x.Permute(axes...) }, axes)
	}
}

func TestTensorValidate(t *testing.T) {
	d := vktest.Open(t)
	b := newBuffer(t, d, "b", 101) // 50 elements of 16 bits, one byte over
	big := math.MaxInt / 2
	half := func(offset int, shape, strides []int) vk.Tensor {
		return vk.Tensor{Buffer: b, DType: dtype.Float16, Shape: shape, Strides: strides, Offset: offset}
	}
	float := half(0, []int{26}, []int{1})
	float.DType = dtype.Float32
	none := half(0, []int{1}, []int{1})
	none.DType = 77
	for name, c := range map[string]struct {
		x    vk.Tensor
		want string // "" if it is valid
	}{
		"whole":           {half(0, []int{50}, []int{1}), ""},
		"last":            {half(49, []int{1}, []int{1}), ""},
		"shared":          {half(0, []int{9, 50}, []int{0, 1}), ""},
		"exact":           {half(0, []int{8, 8}, []int{6, 1}), ""},
		"zero":            {vk.Tensor{}, "no buffer"},
		"one too many":    {half(0, []int{51}, []int{1}), "outside"},
		"partly over":     {float, "outside"},
		"offset":          {half(50, []int{1}, []int{1}), "outside"},
		"huge offset":     {half(math.MaxInt, []int{1}, []int{1}), "outside"},
		"strides":         {half(0, []int{8, 8}, []int{7, 1}), "outside"},
		"overflow":        {half(0, []int{5, 5}, []int{big, big}), "outside"},
		"huge shape":      {half(0, []int{big, 4, 4}, []int{1, 1, 1}), "more elements than can be counted"},
		"huge, shared":    {half(0, []int{1 << 32, 1 << 32}, []int{0, 0}), "more elements than can be counted"},
		"long shape":      {half(0, []int{1 << 40, 4, 4}, []int{1, 1, 1}), "outside"},
		"negative offset": {half(-1, []int{1}, []int{1}), "negative"},
		"negative stride": {half(5, []int{2}, []int{-1}), "not negative"},
		"empty":           {half(0, []int{0}, []int{1}), "must be positive"},
		"ranks":           {half(0, []int{1, 1}, []int{1}), "differ in length"},
		"format":          {none, "no storage format"},
	} {
		if err := c.x.Validate(); c.want == "" {
			require.NoError(t, err, name)
			continue
		}
		wantError(t, name, c.x.Validate(), c.want)
		wantError(t, name+", Upload", c.x.Upload(background(), nil), c.want)
		wantError(t, name+", Download", c.x.Download(background(), nil), c.want)
		wantError(t, name+", Zero", c.x.Zero(background()), c.want)
	}
	x := vk.View(b, dtype.Float16, 5, 10)
	wantError(t, "short", x.Upload(background(), make([]float32, 49)), "length 49, want 50")
	wantError(t, "long", x.Download(background(), make([]float32, 51)), "length 51, want 50")
	wantError(t, "raw", x.UploadRaw(background(), make([]byte, 99)), "length 99, want 100")
	wantError(t, "raw", x.DownloadRaw(background(), make([]byte, 101)), "length 101, want 100")
	b.Close()
	wantError(t, "closed", x.Validate(), "closed")
	whole, start, end := (vk.Tensor{}).Memory()
	require.Nil(t, whole)
	require.Zero(t, start+end)
}

// TestTensorSlice wants what Go's slices of an array are, of any axis.
func TestTensorSlice(t *testing.T) {
	d := vktest.Open(t)
	x := tensor(t, d, "x", 0, 1, 2, 3, 4, 5)
	x.Shape, x.Strides = []int{2, 3}, []int{3, 1}
	wantTensor(t, x.Slice(0, 1, 2), 3, 4, 5)
	wantTensor(t, x.Slice(1, 1, 3), 1, 2, 4, 5)
	wantTensor(t, x.Slice(1, 0, 3), 0, 1, 2, 3, 4, 5)
	wantTensor(t, x.Slice(1, 2, 3).Slice(0, 1, 2), 5)
	require.Equal(t, []int{2, 3}, x.Shape, "of the tensor itself")
	for _, bad := range [][3]int{{2, 0, 1}, {-1, 0, 1}, {0, 1, 0}, {0, 0, 3}, {1, -1, 2}} {
		require.Panics(t, func() { x.Slice(bad[0], bad[1], bad[2]) }, bad)
	}
}

// TestUploadOverlap refuses what would lose elements, and takes what only looks like it.
func TestUploadOverlap(t *testing.T) {
	d := vktest.Open(t)
	x := tensor(t, d, "x", make([]float32, 64)...)
	for _, c := range []struct {
		shape, strides []int
		ok             bool
	}{
		{[]int{2, 3}, []int{4, 2}, false}, // (0, 2) is (1, 0)
		{[]int{2, 3}, []int{3, 2}, true},  // rows between one another
		{[]int{2, 3}, []int{1, 2}, true},
		{[]int{3, 1}, []int{1, 0}, true},
		{[]int{2, 2}, []int{0, 1}, false},
		{[]int{2, 2, 2}, []int{8, 3, 3}, false},
		{[]int{3, 3}, []int{2, 3}, true},
		{[]int{4, 3}, []int{2, 3}, false}, // (3, 0) is (0, 2)
	} {
		x.Shape, x.Strides = c.shape, c.strides
		data := numbered(x.NumElements())
		err := x.Upload(background(), data)
		if !c.ok {
			wantError(t, "overlap", err, "elements share memory")
			continue
		}
		require.NoError(t, err)
		wantTensor(t, x, data...)
	}
}

// TestUploadColumns has goroutines that upload columns of one matrix, and one that runs a kernel on
// another column: none undoes what another did.
func TestUploadColumns(t *testing.T) {
	d := vktest.Open(t)
	k := axpy(t, d)
	const rows, columns = 64, 4
	x, one := tensor(t, d, "x", make([]float32, rows*columns)...), tensor(t, d, "one", 1)
	all := vk.View(x.Buffer, dtype.Float32, rows, columns)
	for round := range 20 {
		var wg sync.WaitGroup
		for column := range columns {
			wg.Add(1)
			go func() {
				defer wg.Done()
				if column > 0 {
					data := make([]float32, rows)
					for i := range data {
						data[i] = float32(round*columns + column)
					}
					require.NoError(t, all.Slice(1, column, column+1).Upload(background(), data))
					return
				}
				c := must(d.NewCmd("column 0"))
				defer c.Close()
				for row := range rows {
					k.Dispatch(c, vk.Groups{}, axpyParams{N: 1, A: 1, YOffset: uint32(row * columns)}, one, x)
				}
				require.NoError(t, c.Submit(background()))
			}()
		}
		wg.Wait()
		for i, got := range download(t, all) {
			want := float32(round*columns + i%columns)
			if i%columns == 0 {
				want = float32(round + 1)
			}
			require.Equal(t, want, got, "round %d, element %d", round, i)
		}
	}
}

// TestLargeBlocks: blocks that are more than one copy takes, or larger, come and go whole.
func TestLargeBlocks(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation)
	const size = 24 << 20
	b := newBuffer(t, d, "b", size)
	rng := rand.New(rand.NewSource(5))
	for _, x := range []vk.Tensor{
		{Shape: []int{9000, 5}, Strides: []int{160, 31}, Offset: 7, DType: dtype.Bool},
		{Shape: []int{7, 3000}, Strides: []int{2, 900}, Offset: 3, DType: dtype.Float16},
		{Shape: []int{2, 9<<20 + 1}, Strides: []int{11 << 20, 1}, Offset: 1, DType: dtype.Bool},
		{Shape: []int{3000, 700}, Strides: []int{701, 1}, Offset: 2, DType: dtype.Int32},
	} {
		x.Buffer = b
		before, got := random(rng, size), make([]byte, size)
		require.NoError(t, b.Upload(background(), 0, before))
		element := x.DType.Size()
		data := random(rng, x.NumElements()*element)
		require.NoError(t, x.UploadRaw(background(), data))
		for i := range x.NumElements() {
			at := element * (x.Offset + i/x.Shape[1]*x.Strides[0] + i%x.Shape[1]*x.Strides[1])
			copy(before[at:at+element], data[i*element:])
		}
		require.NoError(t, b.Download(background(), 0, got))
		require.True(t, bytes.Equal(before, got), "%v", x.Shape)
		got = got[:len(data)]
		require.NoError(t, x.DownloadRaw(background(), got))
		require.True(t, bytes.Equal(data, got), "%v", x.Shape)
	}
}
