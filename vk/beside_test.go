package vk_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestBeside has dispatches that read what those before them write: with no barrier between, one before all and one behind,
// also in a part that is reordered.
func TestBeside(t *testing.T) {
	d := vktest.Open(t, vktest.NoValidation) // which objects
	vectors := map[string]vk.Tensor{}
	for _, name := range []string{"x", "y", "z"} {
		vectors[name] = tensor(t, d, name, numbered(6*int(sliceAlignment(d)/4))...)
	}
	for _, reorders := range []bool{false, true} {
		c := newCmd(t, d)
		end := func() {}
		if reorders {
			end = c.Reorder()
		}
		play(t, d, c, "0>x 0>y", vectors)
		c.Beside(func() { play(t, d, c, "x+y y+z z+x x+y", vectors) })
		require.Equal(t, 2, c.Barriers(), reorders)
		play(t, d, c, "y+z", vectors)
		end()
		require.Equal(t, 2, c.Barriers(), reorders)
		play(t, d, c, "z+y", vectors)
		require.Equal(t, 3, c.Barriers(), reorders)
		c.Reset()
		play(t, d, c, "x+y y+z", vectors)
		require.Equal(t, 1, c.Barriers(), reorders)
		require.NoError(t, c.Submit(background()))
	}
}
