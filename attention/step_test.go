package attention

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// TestChooseStep says which problems take one kernel on an H200, which two, and why a forced kernel is refused.
func TestChooseStep(t *testing.T) {
	device := nvidia("NVIDIA H200", 132, true)
	caps := &device
	usual := AppendProblem{
		DecodeProblem: DecodeProblem{
			Problem: Problem{Batch: 1, NumHeads: 32, NumKVHeads: 8, SeqQ: 1, SeqKV: 4096, HeadDim: 128, DType: dtype.BFloat16, Causal: true}, NewKeys: 1,
		},
		RoPE: RoPE{Dims: 128},
	}
	for _, c := range []struct {
		name    string
		change  func(p *AppendProblem)
		kernels []string
		refused string // why one kernel cannot be forced
	}{
		{"usual", func(*AppendProblem) {}, []string{"attention_decode_append_coopmat.bf16"}, ""},
		{"2 queries", func(p *AppendProblem) { p.SeqQ, p.NewKeys = 2, 2 }, []string{"attention_decode_append_coopmat.bf16"}, ""},
		{"4 queries, two units", func(p *AppendProblem) { p.SeqQ, p.NewKeys = 4, 4 }, []string{"attention_append.bf16", "attention_decode_coopmat.bf16"}, "rows=8 are less than the 16 of a key head"},
		{"4 queries of long sequences", func(p *AppendProblem) { p.SeqQ, p.NewKeys, p.SeqKV = 4, 4, 32768 }, []string{"attention_append.bf16", "attention_decode_coopmat.bf16"}, ""},
		{"8 queries of long sequences", func(p *AppendProblem) { p.SeqQ, p.NewKeys, p.SeqKV = 8, 8, 32768 }, []string{"attention_append.bf16", "attention_decode_coopmat.bf16"}, ""},
		{"16 queries", func(p *AppendProblem) { p.SeqQ, p.NewKeys = 16, 16 }, []string{"attention_append.bf16", "attention_decode_coopmat.bf16"}, "rows=32 are less than the 64 of a key head"},
		{"4 sequences", func(p *AppendProblem) { p.Batch = 4 }, []string{"attention_decode_append_coopmat.bf16"}, ""},
		{"8 sequences", func(p *AppendProblem) { p.Batch = 8 }, []string{"attention_append.bf16", "attention_decode_coopmat.bf16"}, ""},
		{"many keys", func(p *AppendProblem) { p.NewKeys = 100 }, []string{"attention_append.bf16", "attention_decode_coopmat.bf16"}, ""},
		{"halves of words", func(p *AppendProblem) { p.RoPE.Dims = 24 }, []string{"attention_append.bf16", "attention_decode_coopmat.bf16"}, "rotary dims=24 do not consist of words of 8 elements"},
		{"neighbours", func(p *AppendProblem) { p.RoPE = RoPE{24, true} }, []string{"attention_decode_append_coopmat.bf16"}, ""},
		{"8 bits", func(p *AppendProblem) { p.Cache = CacheE4M3 }, []string{"attention_append_cache8.bf16", "attention_decode_cache8_coopmat.bf16"}, "no kernel appends to a cache of e4m3 and decodes"},
		{"float32", func(p *AppendProblem) { p.DType = dtype.Float32 }, []string{"attention_append.f32", "attention_decode.f32"}, ""},
	} {
		p := usual
		c.change(&p)
		plan, err := ChooseStep(caps, p, Options{})
		require.NoError(t, err, c.name)
		require.Equal(t, c.kernels, plan.Kernels(), c.name)
		require.Equal(t, len(c.kernels) == 1, plan.Decode.Append, c.name)
		again, err := ParseDecodeConfig(plan.String())
		require.NoError(t, err, c.name)
		require.Equal(t, plan.Decode, again, c.name)

		config := plan.Decode
		config.Append = false
		apart, err := ChooseStep(caps, p, Options{DecodeConfig: &config})
		require.NoError(t, err, c.name)
		require.Len(t, apart.Kernels(), 2, c.name)
		config.Append = true
		together, err := ChooseStep(caps, p, Options{DecodeConfig: &config})
		if c.refused == "" {
			require.NoError(t, err, c.name)
			require.Len(t, together.Kernels(), 1, c.name)
		} else {
			require.ErrorIs(t, err, vk.ErrUnsupported, c.name)
			require.ErrorContains(t, err, c.refused, c.name)
		}
		_, err = ChooseDecode(caps, p.DecodeProblem, Options{DecodeConfig: &config})
		require.ErrorContains(t, err, "the configuration appends, which Step alone does", c.name)
	}
	for _, change := range []func(p *AppendProblem){
		func(p *AppendProblem) { p.NewKeys = 0 },
		func(p *AppendProblem) { p.RoPE.Dims = 3 },
		func(p *AppendProblem) { p.KeyMask = true },
	} {
		p := usual
		change(&p)
		_, err := ChooseStep(caps, p, Options{})
		require.Error(t, err)
		require.NotErrorIs(t, err, vk.ErrUnsupported)
	}
}
