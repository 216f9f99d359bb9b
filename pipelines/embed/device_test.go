package embed_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/embed"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestDrawn checks drawn calls.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	require.NoError(t, call.TestDrawn(t, d, "embed", 40, call.Space{Thorough: vktest.Thorough(d)}, nil))
}

// TestEdges has both passes at the edges of blocks and tiles: of tokens of one row, of two, and of a row
// each, with and without tokens outside of the table.
func TestEdges(t *testing.T) {
	d := vktest.Open(t)
	for i, tokens := range []int{1, 2, 31, 32, 33, 64, 65, 96, 1023, 1024, 1025, 2048, 2049} {
		for distinct := range 3 {
			c := call.Embed{Distinct: distinct, Outside: (i+distinct)%2 > 0}
			c.Problem = embed.Problem{Tokens: tokens, Vocabulary: max(2, tokens), Dim: 9, DType: dtype.All()[i%3]}
			c.Layout, c.Seed = []string{"p", "a", "o", "t", "e"}[i%5], uint64(i)
			for _, c.Backward = range []bool{false, true} {
				c.Accumulate = (i+distinct)%3 > 0
				call.Test(t, d, &c, nil, c.Pass())
			}
		}
	}
}

// TestMany sorts more tokens than a training step has, of few rows and of many.
func TestMany(t *testing.T) {
	d := vktest.Open(t)
	for _, rows := range []int{3, 1 << 17} {
		c := call.Embed{Problem: embed.Problem{Tokens: 40000, Vocabulary: rows, Dim: 1}}
		call.Test(t, d, &c, nil, kit.Backward)
	}
}
