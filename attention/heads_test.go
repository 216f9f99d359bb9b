package attention_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// TestHeads has views of a tensor whose elements are their numbers, there and back.
func TestHeads(t *testing.T) {
	dev := vktest.Open(t)
	const batch, seq, heads, kvHeads, dim = 2, 3, 6, 2, 4
	x := vktest.Tensor(t, dev, dtype.Float32, batch, seq, heads*dim)
	numbers := make([]float32, x.NumElements())
	for i := range numbers {
		numbers[i] = float32(i)
	}
	require.NoError(t, x.Upload(t.Context(), numbers))
	split, err := attention.SplitHeads(x, heads)
	require.NoError(t, err)
	require.Equal(t, []int{batch, heads, seq, dim}, split.Shape)
	grouped, err := attention.GroupHeads(split, kvHeads)
	require.NoError(t, err)
	require.Equal(t, []int{batch, kvHeads, heads / kvHeads, seq, dim}, grouped.Shape)
	inHeads := elements(t, split)
	for i, x := range inHeads {
		b, h, s, e := i/(heads*seq*dim), i/(seq*dim)%heads, i/dim%seq, i%dim
		require.Equal(t, numbers[((b*seq+s)*heads+h)*dim+e], x)
	}
	require.Equal(t, inHeads, elements(t, grouped), "heads of a group follow one another")
	ungrouped, err := attention.UngroupHeads(grouped)
	require.NoError(t, err)
	require.Equal(t, split, ungrouped)
	merged, err := attention.MergeHeads(ungrouped)
	require.NoError(t, err)
	require.Equal(t, x, merged)

	// One head, one group, one element: axes that a stride says nothing of.
	for _, shape := range [][]int{{2, 1, 3, 4}, {2, 3, 3, 1}, {2, 3, 1, 4}} {
		y := vk.View(x.Buffer, x.DType, shape[0], shape[2], shape[1]*shape[3])
		split, err := attention.SplitHeads(y, shape[1])
		require.NoError(t, err)
		require.Equal(t, shape, split.Shape)
		merged, err := attention.MergeHeads(split)
		require.NoError(t, err)
		require.Equal(t, elements(t, y), elements(t, merged))
		for _, kv := range []int{1, shape[1]} {
			grouped, err := attention.GroupHeads(split, kv)
			require.NoError(t, err)
			ungrouped, err := attention.UngroupHeads(grouped)
			require.NoError(t, err)
			require.Equal(t, elements(t, split), elements(t, ungrouped))
		}
	}

	for want, refused := range map[string]func() (vk.Tensor, error){
		"split heads: shape [2 3 24], want (batch, seq, n) with n a multiple of heads=5": func() (vk.Tensor, error) { return attention.SplitHeads(x, 5) },
		"merge heads: strides [72 12 4 1]: heads of 4 elements do not follow one another": func() (vk.Tensor, error) {
			return attention.MergeHeads(vk.View(x.Buffer, x.DType, batch, heads, seq, dim))
		},
		"merge heads: shape [2 3 24], want (batch, heads, seq, dim)": func() (vk.Tensor, error) { return attention.MergeHeads(x) },
		"with heads a multiple of kv_heads=4":                        func() (vk.Tensor, error) { return attention.GroupHeads(split, 4) },
		"ungroup heads: strides":                                     func() (vk.Tensor, error) { return attention.UngroupHeads(grouped.Permute(0, 2, 1, 3, 4)) },
		"ungroup heads: shape":                                       func() (vk.Tensor, error) { return attention.UngroupHeads(split) },
	} {
		_, err := refused()
		require.ErrorContains(t, err, want)
	}
}
