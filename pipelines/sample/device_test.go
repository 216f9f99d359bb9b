package sample_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/sample"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// TestDrawn checks drawn calls.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t)
	require.NoError(t, call.TestDrawn(t, d, "sample", 48, call.Space{}, nil))
}

// TestEdges has vocabularies at the edges of vectors, words and workgroups, and those of language models, with
// many equal logits and with filters at their limits: top-k of all but one, top-p of nearly nothing and nearly all.
func TestEdges(t *testing.T) {
	d := vktest.Open(t)
	for i, vocabulary := range []int{1, 2, 9, 31, 33, 513, 4097, 151936, 262144} {
		x := &call.Sample{Problem: sample.Problem{Rows: 3, Vocabulary: vocabulary, DType: dtype.All()[i%3]}, Levels: i%2 > 0}
		x.Layout, x.Seed, x.Magnitude, x.Kind = []string{"p", "a", "o"}[i%3], uint64(i), 3, []string{call.NormalKind, call.ZeroKind}[i/2%2]
		for _, x.Filters = range []sample.Filters{
			{RepetitionPenalty: 1.5}, {Temperature: 1, TopK: max(1, vocabulary-1), TopP: 1 - 1e-3}, {Temperature: 2, TopP: 1e-9, MinP: 1},
		} {
			call.Test(t, d, x, nil, kit.Forward)
		}
	}
}
