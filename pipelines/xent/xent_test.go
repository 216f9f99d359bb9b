package xent

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/shaders/layouttest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestLayouts compares every Go mirror of this package with its shader.
func TestLayouts(t *testing.T) {
	layouttest.CheckAll(t, "xent_", map[string]layouttest.Row{
		"xent_total": layouttest.Of(totalParams{}, totalSpec{}, "Labels", "Losses", "DLoss", "Totals", "Loss"),
		"xent_rows":  layouttest.Of(rowsParams{}, rowsSpec{}, "X", "Labels", "Totals", "Losses", "LSE"),
	})
}

// TestShare wants even shares, of whole blocks where they are large.
func TestShare(t *testing.T) {
	for _, x := range []struct{ n, most, want int }{{10, 20, 10}, {10, 0, 1}, {10, 9, 5}, {10, 4, 4}, {1000, 999, 512}, {1000, 130, 128}, {8192, 1046, 1024}} {
		require.Equal(t, x.want, share(x.n, int64(x.most)), "%d of %d", x.most, x.n)
	}
}

// TestLimits names what a device does not see, and divides what it sees in parts: Llama's last layer on a
// device with buffers of 128 MiB.
func TestLimits(t *testing.T) {
	caps := vk.Caps{
		ScalarBlockLayout: true, Storage16: true, MaxSharedMemoryBytes: 32768, MaxStorageBufferRange: 128 << 20, SubgroupSize: 32,
		MaxWorkgroupInvocations: 256, MaxWorkgroupSize: [3]uint32{256, 256, 64}, MaxWorkgroupCount: [3]uint32{65535, 65535, 65535},
		MaxStorageBuffers: 16, MaxPushConstantsBytes: 256,
	}
	p := Problem{Tokens: 8192, Vocabulary: 128256, Dim: 2048, DType: dtype.Float16, Grad: dtype.Some(dtype.Float32)}
	plan, err := Choose(&caps, p, kit.Backward, Options{})
	require.NoError(t, err)
	require.Equal(t, []int{256, 16064}, []int{plan.Tokens, plan.Rows})
	p.Vocabulary = 1 << 26
	_, err = Choose(&caps, p, kit.Forward, Options{})
	require.ErrorIs(t, err, vk.ErrUnsupported)
	require.ErrorContains(t, err, "xent: the logits of a token have 268435456 bytes, a kernel sees 134217728 of a buffer")
	_, err = Choose(&caps, Problem{Tokens: 1 << 14, Vocabulary: 1 << 14}, kit.Forward, Options{})
	require.ErrorContains(t, err, "xent: logits have 1073741824 bytes, a kernel sees 134217728 of a buffer")
	_, err = Choose(&caps, Problem{Tokens: 1, Vocabulary: 1}, kit.Forward, Options{Memory: -1})
	require.EqualError(t, err, "xent: memory=-1 is negative")
}
