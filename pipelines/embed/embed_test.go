package embed

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
	layouttest.CheckAll(t, "embed_", map[string]layouttest.Row{
		"embed_fwd":  layouttest.Of(fwdParams{}, fwdSpec{}, "IDs", "Table", "Out"),
		"embed_sort": layouttest.Of(sortParams{}, sortSpec{}, "IDs", "Tiles", "Sorted"),
		"embed_bwd":  layouttest.Of(bwdParams{}, bwdSpec{}, "Sorted", "DOut", "DTable", "Parts"),
	})
}

// TestLimits names what is larger than a device's buffers, and the limit: the table of GPT-2 in float32,
// its gradient alone, many rows of out, and the workspace of many tokens.
func TestLimits(t *testing.T) {
	caps := vk.Caps{ScalarBlockLayout: true, Storage16: true, MaxSharedMemoryBytes: 16384, MaxStorageBufferRange: 128 << 20}
	gpt2 := Problem{Tokens: 8, Vocabulary: 50257, Dim: 768}
	half := gpt2
	half.DType, half.Grad = dtype.Float16, dtype.Some(dtype.Float32)
	long, longer := Problem{Tokens: 1 << 23, Vocabulary: 8, Dim: 1}, Problem{Tokens: 1 << 26, Vocabulary: 8, Dim: 1}
	for _, x := range []struct {
		p    Problem
		pass kit.Pass
		want string
	}{
		{gpt2, kit.Forward, "table has 154389504 bytes"}, {half, kit.Forward, ""},
		{half, kit.Backward, "dtable has 154389504 bytes"}, {long, kit.Forward, ""}, {long, kit.Backward, "workspace has 150994944 bytes"},
		{longer, kit.Forward, "out has 268435456 bytes"}, {longer, kit.Backward, "dout has 268435456 bytes"},
	} {
		_, err := Choose(&caps, x.p, x.pass, Options{})
		if x.want == "" {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, err, vk.ErrUnsupported)
		require.ErrorContains(t, err, "embed: "+x.want+", a kernel sees 134217728 of a buffer")
	}
}
