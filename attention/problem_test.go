package attention

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/philox"
)

func square(seqQ, seqKV int) Problem {
	return Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: seqQ, SeqKV: seqKV, HeadDim: 8, DType: dtype.Float16}
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
		{func(p *Problem) { p.CausalAlign = TopLeft }, "attention: causal_align=top-left without causal, window or alibi, which it aligns"},
		{func(p *Problem) { p.CausalAlign, p.Window = TopLeft, Window{true, 1, 0} }, ""},
		{func(p *Problem) { p.CausalAlign, p.ALiBi = TopLeft, ALiBiPerHead }, ""},
		{func(p *Problem) { p.ValueDim = 20 }, "attention: value_dim=20 is not a multiple of 8"},
		{func(p *Problem) { p.ValueDim = 264 }, "attention: value_dim=264 is larger than 256"},
		{func(p *Problem) { p.ValueDim = -8 }, "attention: value_dim=-8 is not positive"},
		{func(p *Problem) { p.Window = Window{true, -1, -1} }, ""},
		{func(p *Problem) { p.Window = Window{true, -2, 0} }, "attention: window left=-2 excludes a row's own position: it must be a number of keys, or -1 for unlimited"},
		{func(p *Problem) { p.Window = Window{true, 0, -7} }, "attention: window right=-7 excludes a row's own position: it must be a number of keys, or -1 for unlimited"},
		{func(p *Problem) { p.Window = Window{true, 1 << 31, 0} }, "attention: window left=2147483648 is larger than 2147483647"},
		{func(p *Problem) { p.Window.Left = 4 }, "attention: window left=4, right=0 is set but not on"},
		{func(p *Problem) { p.Softcap = 30 }, ""},
		{func(p *Problem) { p.Softcap = -30 }, "attention: softcap=-30 is not a positive, normal float32"},
		{func(p *Problem) { p.Softcap = math.NaN() }, "attention: softcap=NaN is not a positive, normal float32"},
		{func(p *Problem) { p.Softcap = math.Inf(1) }, "attention: softcap=+Inf is not a positive, normal float32"},
		{func(p *Problem) { p.Softcap = 1e-39 }, "attention: softcap=1e-39 is not a positive, normal float32"},
		{func(p *Problem) { p.ALiBi = 3 }, "attention: alibi=ALiBi(3) is not a known shape of slopes"},
		{func(p *Problem) { p.Bias.Heads = true }, "attention: bias is set but not on"},
		{func(p *Problem) { p.Bias = Bias{On: true, Rows: true} }, ""},
		{func(p *Problem) { p.Bias = Bias{On: true, DType: dtype.Float16} }, ""},
		{func(p *Problem) { p.Bias = Bias{On: true, DType: dtype.BFloat16} }, "attention: bias is bfloat16, want float32 or the float16 of q"},
		{func(p *Problem) { p.Varlen = Varlen{true, 3, 4} }, ""},
		{func(p *Problem) { p.Varlen = Varlen{true, 2, 4} }, "attention: seq_q=3, the length of the longest sequence, is larger than total_q=2"},
		{func(p *Problem) { p.Varlen = Varlen{true, 3, 3} }, "attention: seq_kv=4, the length of the longest sequence, is larger than total_kv=3"},
		{func(p *Problem) { p.Varlen = Varlen{true, 0, 4} }, "attention: total_q=0 is not positive"},
		{func(p *Problem) { p.Varlen = Varlen{true, 3, 1 << 31} }, "attention: total_kv=2147483648 is larger than 2147483647"},
		{func(p *Problem) { p.Varlen.TotalQ = 7 }, "attention: total_q=7, total_kv=0 are set but varlen is not on"},
		{func(p *Problem) { p.Dropout = Dropout{P: 0.1, Seeded: true} }, ""},
		{func(p *Problem) { p.Dropout = Dropout{Seeded: true, Seed: 9} }, ""},
		{func(p *Problem) { p.Dropout.P = 0.1 }, "attention: dropout p=0.1 without a seed, which tells what is dropped"},
		{func(p *Problem) { p.Dropout = Dropout{P: 1, Seeded: true} }, "attention: dropout p=1 is not in [0, 1)"},
		{func(p *Problem) { p.Dropout = Dropout{P: -0.1, Seeded: true} }, "attention: dropout p=-0.1 is not in [0, 1)"},
		{func(p *Problem) { p.Dropout.P = math.NaN() }, "attention: dropout p=NaN is not in [0, 1)"},
		{func(p *Problem) { p.Quant = dtype.QuantInt8 }, ""},
		{func(p *Problem) { p.Quant = dtype.QuantQ8 }, "attention: quant=q8_0 is not one of none, int8, e4m3"},
		{func(p *Problem) { p.Quant, p.DType = dtype.QuantE4M3, dtype.Float32 }, "attention: quant=e4m3 of float32 tensors: it takes float16 or bfloat16"},
		{func(p *Problem) { p.Dropout.Seed = 5 }, "attention: dropout seed=5, offset=0 are set but not seeded"},
		{func(p *Problem) { p.Bias.On, p.SeqQ, p.SeqKV = true, math.MaxInt32, math.MaxInt32 }, "attention: batch*num_heads*seq_q*seq_kv=4.61e+18 elements of a bias is larger than 2^52"},
		{func(p *Problem) { p.DType = 9 }, "attention: dtype=DType(9) is not a known floating-point format"},
		{func(p *Problem) { p.DType = dtype.Int32 }, "attention: dtype=int32 is not a known floating-point format"},
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

func TestCounts(t *testing.T) {
	p := Problem{Batch: 2, NumHeads: 8, NumKVHeads: 4, SeqQ: 1024, SeqKV: 512, HeadDim: 64, DType: dtype.BFloat16}
	require.Equal(t, 0.125, p.EffectiveScale())
	p.Scale = -2
	require.Equal(t, -2.0, p.EffectiveScale())
	require.Equal(t, float64(2*(2*2*8*1024*64+2*2*4*512*64)+4*2*8*1024), p.Bytes())
	require.Equal(t, "dtype=bfloat16/batch=2/heads=8/kv_heads=4/seq_q=1024/seq_kv=512/head_dim=64/causal=false", p.String())

	p.ValueDim = 64
	require.True(t, p.Plain())
	require.Empty(t, p.Features())
	p.ValueDim = 128
	require.False(t, p.Plain())
	require.Equal(t, 128, p.ValueHeadDim())
	require.Equal(t, float64(2*2*8*1024*512*(64+128)), p.FLOPs())
	require.Equal(t, float64(2*2*8*1024*512*(3*64+2*128)), p.BackwardFLOPs())
	p.ValueDim = 0
	require.Equal(t, 2.5*p.FLOPs(), p.BackwardFLOPs())
	p.ValueDim = 128
	require.Equal(t, float64(2*(2*8*1024*(64+128)+2*4*512*(64+128))+4*2*8*1024), p.Bytes())
}

// TestFeatures: each feature on its own is not plain, is named in messages, and
// has a benchmark key; the bytes of its tensors count.
func TestFeatures(t *testing.T) {
	plain := Problem{Batch: 2, NumHeads: 3, NumKVHeads: 1, SeqQ: 10, SeqKV: 20, HeadDim: 8, DType: dtype.Float16}
	for _, c := range []struct {
		name, key string
		bytes     float64
		change    func(*Problem)
	}{
		{"value_dim", "value_dim=16", 2 * (2*3*10*8 + 2*20*8), func(p *Problem) { p.ValueDim = 16 }},
		{"window", "window=5,-1", 0, func(p *Problem) { p.Window = Window{true, 5, Unlimited} }},
		{"softcap", "softcap=30", 0, func(p *Problem) { p.Softcap = 30 }},
		{"alibi", "alibi=heads", 4 * 3, func(p *Problem) { p.ALiBi = ALiBiPerHead }},
		{"alibi", "alibi=batch-heads", 4 * 2 * 3, func(p *Problem) { p.ALiBi = ALiBiPerBatchHead }},
		{"bias", "bias=float32", 4 * 20, func(p *Problem) { p.Bias.On = true }},
		{"bias", "bias=float16+batch+heads+rows", 2 * 2 * 3 * 10 * 20, func(p *Problem) { p.Bias = Bias{true, dtype.Float16, true, true, true} }},
		{"bias", "bias=float32+heads", 4 * 3 * 20, func(p *Problem) { p.Bias = Bias{On: true, Heads: true} }},
		{"key_mask", "key_mask=true", 2 * 20, func(p *Problem) { p.KeyMask = true }},
		{"sinks", "sinks=true", 4 * 3, func(p *Problem) { p.Sinks = true }},
		{"quant", "quant=int8", 0, func(p *Problem) { p.Quant = dtype.QuantInt8 }},
		{"dropout", "dropout=0.25", 0, func(p *Problem) { p.Dropout = Dropout{P: 0.25, Seeded: true, Seed: 7} }},
	} {
		p := plain
		c.change(&p)
		require.NoError(t, p.Validate())
		require.Equal(t, c.name == "quant", p.Plain(), c.key) // which is no module with features
		require.Equal(t, []string{c.name}, p.Features())
		require.Equal(t, plain.String()+"/"+c.key, p.String())
		require.Equal(t, plain.Bytes()+c.bytes, p.Bytes(), c.key)
	}

	// Packed sequences: 15 rows and 25 keys in all.
	p := plain
	p.Varlen = Varlen{true, 15, 25}
	require.NoError(t, p.Validate())
	require.False(t, p.Plain())
	require.Equal(t, plain.String()+"/varlen=15x25", p.String())
	require.Equal(t, float64(2*(2*15*3*8+2*25*8)+4*3*15+2*4*3), p.Bytes())
	require.Equal(t, []int{15, 3, 8}, p.QShape())
	require.Equal(t, []int{25, 1, 8}, p.VShape())
	require.Equal(t, []int{3, 15}, p.LSEShape())

	p = plain
	p.Window, p.CausalAlign = Window{true, 5, 0}, TopLeft
	require.Equal(t, plain.String()+"/align=top-left/window=5,0", p.String())
}

func TestCheckCuSeqlens(t *testing.T) {
	p := Problem{Batch: 3, NumHeads: 2, NumKVHeads: 1, SeqQ: 4, SeqKV: 5, HeadDim: 8, Varlen: Varlen{true, 9, 8}}
	good := []int32{0, 4, 4, 8}
	for _, c := range []struct {
		q, kv []int32
		want  string
	}{
		{good, good, ""},
		{[]int32{0, 4, 5, 9}, []int32{0, 0, 0, 0}, ""},
		{good[:3], good, "attention: cu_seqlens_q has 3 entries, want batch+1=4"},
		{[]int32{1, 4, 4, 8}, good, "attention: cu_seqlens_q[0]=1 is not 0"},
		{good, []int32{0, 4, 3, 8}, "attention: cu_seqlens_kv[2]=3 is less than 4 before it"},
		{good, []int32{0, 4, 4, 9}, "attention: cu_seqlens_kv[3]=9 is beyond the tensor, total_kv=8"},
		{[]int32{0, 4, 9, 9}, good, "attention: cu_seqlens_q[2]=9 is 5 after 4, more than seq_q=4"},
	} {
		if c.want == "" {
			require.NoError(t, p.CheckCuSeqlens(c.q, c.kv))
			continue
		}
		require.EqualError(t, p.CheckCuSeqlens(c.q, c.kv), c.want)
	}
	// Causal 4x4, nothing, 4x4: 10 entries each.
	p.Causal = true
	require.Equal(t, float64(2*2*(10+10)*16), p.FLOPsOf(good, good))
	require.Equal(t, float64(3*2*2*14*16), p.FLOPs()) // 2+3+4+5 entries
}

// sees is the definition of the mask.
func sees(p Problem, i, j int) bool {
	at := i
	if p.CausalAlign == BottomRight {
		at = i + p.SeqKV - p.SeqQ
	}
	w := p.Window
	return !(p.Causal && j > at ||
		w.On && w.Left >= 0 && j < at-w.Left ||
		w.On && w.Right >= 0 && j > at+w.Right)
}

// TestDrawnMasks holds the masks drawn in the docs.
func TestDrawnMasks(t *testing.T) {
	for _, c := range []struct {
		p    Problem
		want string
	}{
		{Problem{SeqQ: 2, SeqKV: 5, Causal: true}, "11110 11111"},
		{Problem{SeqQ: 2, SeqKV: 5, Causal: true, CausalAlign: TopLeft}, "10000 11000"},
		{Problem{SeqQ: 5, SeqKV: 2, Causal: true}, "00 00 00 10 11"},
		{Problem{SeqQ: 5, SeqKV: 2, Causal: true, CausalAlign: TopLeft}, "10 11 11 11 11"},
		{Problem{SeqQ: 3, SeqKV: 5, Window: Window{true, 1, 0}}, "01100 00110 00011"},
		{Problem{SeqQ: 3, SeqKV: 5, Window: Window{true, 1, 1}}, "01110 00111 00011"},
		{Problem{SeqQ: 3, SeqKV: 5, Window: Window{true, 1, -1}}, "01111 00111 00011"},
		{Problem{SeqQ: 3, SeqKV: 5, Window: Window{true, -1, 0}}, "11100 11110 11111"},
		{Problem{SeqQ: 3, SeqKV: 5, Window: Window{true, 1, 2}, Causal: true}, "01100 00110 00011"},
		{Problem{SeqQ: 4, SeqKV: 2, Window: Window{true, 0, 1}, CausalAlign: TopLeft}, "11 01 00 00"},
	} {
		var rows []string
		for i := range c.p.SeqQ {
			lo, hi := c.p.Mask().Keys(i)
			rows = append(rows, strings.Repeat("0", lo)+strings.Repeat("1", hi-lo)+strings.Repeat("0", c.p.SeqKV-hi))
		}
		require.Equal(t, c.want, strings.Join(rows, " "), "%v", c.p)
	}
}

// TestMask compares intervals, counts and tiles with the definition.
func TestMask(t *testing.T) {
	sides := []int{-1, 0, 1, 3, 100}
	for seqQ := 1; seqQ < 9; seqQ++ {
		for seqKV := 1; seqKV < 9; seqKV++ {
			for x := range 2 * 2 * (1 + len(sides)*len(sides)) {
				p := square(seqQ, seqKV)
				p.Causal, p.CausalAlign = x%2 == 1, Align(x/2%2)
				if w := x/4 - 1; w >= 0 {
					p.Window = Window{true, sides[w/len(sides)], sides[w%len(sides)]}
				}
				checkMask(t, p)
			}
		}
	}
}

func checkMask(t *testing.T, p Problem) {
	m := p.Mask()
	require.LessOrEqual(t, max(m.Left, m.Right), p.SeqQ+p.SeqKV) // sums fit 32 bits
	count := 0
	for i := range p.SeqQ {
		lo, hi := m.Keys(i)
		require.True(t, 0 <= lo && lo <= hi && hi <= p.SeqKV, "%v row %d: %d to %d", p, i, lo, hi)
		for j := range p.SeqKV {
			if want := sees(p, i, j); want != (lo <= j && j < hi) {
				t.Fatalf("%v row %d key %d: keys %d to %d, want %v", p, i, j, lo, hi, want)
			}
		}
		count += hi - lo
	}
	require.Equal(t, float64(count), p.Entries(), "%v", p)
	require.Equal(t, float64(32*count), p.FLOPs(), "%v", p)
	for first := range p.SeqQ {
		for last := first; last < p.SeqQ; last++ {
			for tile := 1; tile < 4; tile++ {
				lo, hi := m.KeyTiles(first, last, tile)
				for n := range (p.SeqKV + tile - 1) / tile {
					needed := false
					for i := first; i <= last; i++ {
						for j := n * tile; j < min((n+1)*tile, p.SeqKV); j++ {
							needed = needed || sees(p, i, j)
						}
					}
					if needed != (lo <= n && n < hi) {
						t.Fatalf("%v rows %d to %d, tile %d of %d keys: needed %v, tiles %d to %d", p, first, last, n, tile, needed, lo, hi)
					}
				}
			}
		}
	}
}

// TestEntries: the area of a long window, in closed form, and sequences of a Varlen without rows or keys.
func TestEntries(t *testing.T) {
	p := square(205000, 205000)
	p.Causal, p.Window = true, Window{true, 512, 0}
	require.Equal(t, float64(205000*513-512*513/2), p.Entries())
	p.Window = Window{}
	require.Equal(t, 205000.0*205001/2, p.Entries())
	require.Zero(t, p.MaskOf(0, 4).Entries()+p.MaskOf(3, 0).Entries())
	lo, hi := p.MaskOf(3, 0).KeyTiles(0, 2, 2)
	require.Equal(t, lo, hi)
}

// TestDropout: one call of Philox for four keys, its words compared with the threshold as documented,
// and an offset of batch*num_heads where the next call begins.
func TestDropout(t *testing.T) {
	p := square(100, 100)
	p.Batch, p.NumHeads = 2, 3
	p.Dropout = Dropout{P: 0.5, Seeded: true, Seed: 0x123456789abcdef0, Offset: 0xfffffffe}
	row := p.DropoutRow(1, 2, 77) // head 5 after an offset of 2^32-2: the carry matters
	next := p
	next.Dropout.Offset += 6
	p.Batch = 4
	third, first := p.DropoutRow(2, 1, 3), next.DropoutRow(0, 1, 3)
	for _, key := range []int{0, 1, 2, 3, 4, 50, 51, 99, 0} {
		words := philox.Words([4]uint32{uint32(key / 4), 77, 3, 1}, [2]uint32{0x9abcdef0, 0x12345678})
		require.Equal(t, words[key%4] >= 1<<31, row.Kept(key), "key %d", key)
		require.Equal(t, third.Kept(key), first.Kept(key), "key %d", key)
	}
	for _, c := range []struct {
		p    float64
		want uint32
	}{{0, 0}, {0.5, 1 << 31}, {0x1p-32, 1}, {0x1p-40, 0}, {0.1, 429496730}, {1 - 0x1p-53, 1<<32 - 1}} {
		require.Equal(t, c.want, Dropout{P: c.p}.Threshold(), "%v", c.p)
	}
	require.Equal(t, 4.0, Dropout{P: 0.75}.KeepScale())
}
