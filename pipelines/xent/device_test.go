package xent_test

import (
	"testing"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/xent"
)

// TestDrawn checks drawn calls on every path.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t)
	for impl, n := range map[engine.Impl]int{engine.Scalar: 40, engine.CoopMat: 5} {
		vktest.Require(t, impl.String(), call.TestDrawn(t, d, "xent", n, call.Space{Impls: []string{impl.String()}}, nil))
	}
}

// TestEdges has both passes at the edges of vectors and of tiles of a row, with logits that are given and
// that are not, in place in every format.
func TestEdges(t *testing.T) {
	d := vktest.Open(t)
	for i, vocabulary := range []int{1, 2, 7, 8, 9, 1023, 1024, 1025, 2047, 2048, 2049, 4100} {
		for dim := range 2 {
			p := xent.Problem{Tokens: 3, Vocabulary: vocabulary, Dim: 3 * dim, DType: dtype.All()[(i+dim)%3], Smoothing: 0.1 * float64(i%2)}
			c := &call.Xent{Problem: p, Losses: true, LSE: true, Loss: true, Impl: engine.Scalar.String()}
			c.Layout, c.Seed = []string{"p", "a", "o", "t", "e"}[i%5], uint64(i)
			for _, c.Backward = range []bool{false, true} {
				call.Test(t, d, c, nil, c.Pass())
			}
		}
	}
}
