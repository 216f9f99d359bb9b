package sumrows

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/vk"
)

// TestSpec wants as many invocations as there are sums to add up, and no more than a device has.
func TestSpec(t *testing.T) {
	large := &vk.Caps{MaxWorkgroupInvocations: 1024, MaxWorkgroupSize: [3]uint32{1024, 1024, 64}, MaxSharedMemoryBytes: 49152}
	small := &vk.Caps{MaxWorkgroupInvocations: 128, MaxWorkgroupSize: [3]uint32{128, 128, 64}, MaxSharedMemoryBytes: 16384}
	for _, x := range []struct {
		caps        *vk.Caps
		count, cols int
		want        spec
	}{
		{large, 1, 1, spec{32, 1}},
		{large, 33, 4, spec{64, 1}},
		{large, 500, 1, spec{512, 1}},
		{large, 100000, 1, spec{1024, 1}},
		{large, 32, 5, spec{64, 2}},
		{large, 32, 512, spec{128, 4}},
		{large, 264, 512, spec{1024, 4}},
		{small, 264, 512, spec{128, 4}},
	} {
		require.Equal(t, x.want, newSpec(x.caps, x.count, x.cols), "%d rows of %d", x.count, x.cols)
	}
}

// TestLayout compares the Go mirrors of this package with the shader.
func TestLayout(t *testing.T) {
	layouttest.CheckAll(t, "sum_rows", map[string]layouttest.Row{"sum_rows": layouttest.Of(params{}, spec{}, "Parts", "Dst")})
}
