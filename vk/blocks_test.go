package vk_test

import (
	"bytes"
	"math/rand"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

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
				c, err := d.NewCmd("column 0")
				require.NoError(t, err)
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
