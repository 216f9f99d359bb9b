package decoder_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/decoder"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestMain(m *testing.M) { vktest.Main(m) }

// TestDrawn checks drawn calls.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	require.NoError(t, call.TestDrawn(t, d, "decoder", 24, call.Space{Thorough: vktest.Thorough(d)}, nil))
}

// TestTogether has two workgroups that wait for each other, in three layers: the places of words, and who reads which copy.
func TestTogether(t *testing.T) {
	if runtime.NumCPU() < 2 {
		t.Skip("a software driver runs as many workgroups at once as there are processors")
	}
	d := vktest.Open(t, vktest.NoValidation) // to which dispatches that wait for each other are a hazard
	c := &call.Decoder{
		Problem: decoder.Problem{Width: 72, Hidden: 104, Heads: 4, KVHeads: 2, HeadDim: 64, Keys: 90, Bias: true, Eps: 1e-5, DType: dtype.Float16},
		Config:  &decoder.Config{Groups: 2, Threads: 64, Splits: 3, Team: 4, Loads: 2, Keys: 2, Ahead: 2, Copies: 2, Beside: true}, Length: 70, Layers: 3,
	}
	call.Test(t, d, c, nil, kit.Forward)
}
