package problem

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
)

func square(seqQ, seqKV int) Problem {
	return Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: seqQ, SeqKV: seqKV, HeadDim: 8, DType: dtype.Float16}
}

// TestDrawnMasks holds the masks drawn in the docs.
func TestDrawnMasks(t *testing.T) {
	for _, c := range []struct {
		seqQ, seqKV int
		align       Align
		want        []string
	}{
		{2, 5, BottomRight, []string{"11110", "11111"}},
		{2, 5, TopLeft, []string{"10000", "11000"}},
		{5, 2, BottomRight, []string{"00", "00", "00", "10", "11"}},
		{5, 2, TopLeft, []string{"10", "11", "11", "11", "11"}},
	} {
		p := square(c.seqQ, c.seqKV)
		p.Causal, p.CausalAlign = true, c.align
		for i, row := range c.want {
			got := ""
			for j := range c.seqKV {
				if j < p.VisibleKeys(i) {
					got += "1"
				} else {
					got += "0"
				}
			}
			require.Equal(t, row, got, "%v row %d", p, i)
		}
	}
}

// TestEntries compares the closed form with a count.
func TestEntries(t *testing.T) {
	for seqQ := 1; seqQ < 12; seqQ++ {
		for seqKV := 1; seqKV < 12; seqKV++ {
			for _, causal := range []bool{false, true} {
				for _, align := range []Align{BottomRight, TopLeft} {
					p := square(seqQ, seqKV)
					p.Causal, p.CausalAlign = causal, align
					count := 0
					for i := range seqQ {
						count += p.VisibleKeys(i)
					}
					require.Equal(t, float64(count), p.Entries(), "%v", p)
					require.Equal(t, float64(32*count), p.FLOPs(), "%v", p)
				}
			}
		}
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		change func(*Problem)
		want   string
	}{
		{func(p *Problem) {}, ""},
		{func(p *Problem) { p.Batch = 0 }, "attention: batch=0 is not positive"},
		{func(p *Problem) { p.SeqKV = -3 }, "attention: seq_kv=-3 is not positive"},
		{func(p *Problem) { p.NumHeads, p.NumKVHeads = 6, 4 }, "attention: num_heads=6 is not a multiple of num_kv_heads=4"},
		{func(p *Problem) { p.HeadDim = 12 }, "attention: head_dim=12 is not a multiple of 8"},
		{func(p *Problem) { p.HeadDim = 264 }, "attention: head_dim=264 is larger than 256"},
		{func(p *Problem) { p.Scale = math.NaN() }, "attention: scale=NaN times log2(e) is not a normal float32"},
		{func(p *Problem) { p.Scale = math.Inf(-1) }, "attention: scale=-Inf times log2(e) is not a normal float32"},
		{func(p *Problem) { p.Scale = 1e300 }, "attention: scale=1e+300 times log2(e) is not a normal float32"},
		{func(p *Problem) { p.Scale = 3e38 }, "attention: scale=3e+38 times log2(e) is not a normal float32"},
		{func(p *Problem) { p.Scale = -8.1e-39 }, "attention: scale=-8.1e-39 times log2(e) is not a normal float32"},
		{func(p *Problem) { p.Scale = 5e-324 }, "attention: scale=5e-324 times log2(e) is not a normal float32"},
		{func(p *Problem) { p.Scale = -8.2e-39 }, ""},
		{func(p *Problem) { p.Scale = 2.35e38 }, ""},
		{func(p *Problem) { p.CausalAlign = TopLeft }, "attention: causal_align=top-left without causal"},
		{func(p *Problem) { p.DType = 9 }, "attention: dtype=DType(9) is not a known format"},
		{func(p *Problem) { p.Batch, p.SeqQ = math.MaxInt32, math.MaxInt32 }, "attention: batch*num_heads*seq*head_dim=3.69e+19 elements is larger than 2^52"},
	} {
		p := square(3, 4)
		c.change(&p)
		if c.want == "" {
			require.NoError(t, p.Validate())
			continue
		}
		require.EqualError(t, p.Validate(), c.want)
	}
}

func TestDefaultsAndCounts(t *testing.T) {
	p := Problem{Batch: 2, NumHeads: 8, NumKVHeads: 4, SeqQ: 1024, SeqKV: 512, HeadDim: 64, DType: dtype.BFloat16}
	require.Equal(t, 0.125, p.EffectiveScale())
	p.Scale = -2
	require.Equal(t, -2.0, p.EffectiveScale())
	require.Equal(t, float64(2*(2*2*8*1024*64+2*2*4*512*64)+4*2*8*1024), p.Bytes())
	require.Equal(t, "dtype=bfloat16/batch=2/heads=8/kv_heads=4/seq_q=1024/seq_kv=512/head_dim=64/causal=false", p.String())
}
