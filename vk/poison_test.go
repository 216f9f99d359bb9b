package vk_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestPoisonScratch says that scratch memory holds the word each time that it is taken, also
// where the recording before wrote it, and that Modules lists what was dispatched.
func TestPoisonScratch(t *testing.T) {
	d := vktest.Open(t, func(o *vk.Options) { o.PoisonScratch = 0xffffffff })
	k := axpy(t, d)
	to := newBuffer(t, d, "to", 64)
	c, err := d.NewCmd("poison")
	require.NoError(t, err)
	defer c.Close()
	for range 2 {
		s := c.Scratch("s", 64)
		require.Empty(t, c.Modules())
		c.Copy(to, 0, s, 0, 64)
		c.Fill(s, 0, 64, 0)
		x := vk.Tensor{Buffer: s, DType: dtype.Float32, Shape: []int{16}, Strides: []int{1}}
		k.Dispatch(c, vk.Groups{X: 1}, axpyParams{N: 1, A: 1}, x, x)
		require.Equal(t, []vk.ModuleInfo{{Name: "axpy", SPIRV: axpySPIRV}}, c.Modules())
		require.NoError(t, c.Submit(background()))
		got := make([]byte, 64)
		require.NoError(t, to.Download(background(), 0, got))
		for _, b := range got {
			require.EqualValues(t, 0xff, b)
		}
		c.Reset()
	}
}
