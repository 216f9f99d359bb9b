package tests

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestFloat32Alone has a device without types of 16 bits, which the validation layer watches over: every
// kernel computes float32 there. Float16 is an error before a kernel of float32 reads it.
func TestFloat32Alone(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t, func(o *vk.Options) {
		o.Lower = func(c *vk.Caps) { c.Storage16, c.Int16, c.Float16, c.BFloat16Type = false, false, false, false }
	})
	for _, k := range call.All() {
		t.Run(k.Name, func(t *testing.T) {
			err := call.TestDrawn(t, d, k.Name, 1, call.Space{DTypes: []dtype.DType{dtype.Float32}}, nil)
			require.NoError(t, err)
		})
	}
}
