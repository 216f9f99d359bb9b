package attention

import (
	"encoding/csv"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/chips/chipstest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestForwardRule wants the rule to follow the measurements: the kernel that the rule takes is not
// slower than the other kernel by more than two runs differ, but for the cases that the rule is too
// simple for.
func TestForwardRule(t *testing.T) {
	f, err := os.Open("testdata/h200_few_queries.csv")
	require.NoError(t, err)
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	h200 := nvidia("NVIDIA H200", 132, true)
	taken, missed := 0, 0
	for _, row := range rows[1:] {
		var n [8]float64
		for i := range n {
			n[i], err = strconv.ParseFloat(row[i+1], 64)
			require.NoError(t, err)
		}
		p := Problem{Batch: int(n[0]), NumHeads: int(n[1]), NumKVHeads: int(n[2]), SeqQ: int(n[3]), SeqKV: int(n[4]), HeadDim: int(n[5]), Causal: true}
		p.DType, err = dtype.Parse(row[0])
		require.NoError(t, err)
		plan, err := Choose(&h200, p, kit.Forward, Options{})
		require.NoError(t, err)
		gain := n[6] / n[7]
		if plan.Decode.Impl != Auto {
			taken++
			require.Greater(t, gain, 0.97, "%v takes %v", p, plan)
		} else if gain > 1.05 {
			missed++
		}
	}
	require.Greater(t, taken, 240)
	require.Less(t, missed, 25)
}

// TestForwardTakesDecode says which problems Forward gives to the kernels of Decode.
func TestForwardTakesDecode(t *testing.T) {
	few := Problem{Batch: 2, NumHeads: 32, NumKVHeads: 8, SeqQ: 1, SeqKV: 4096, HeadDim: 128, DType: dtype.BFloat16, Causal: true}
	h200, least := nvidia("NVIDIA H200", 132, true), leastDevice()
	for _, c := range []struct {
		name   string
		caps   *vk.Caps
		change func(p *Problem, o *Options)
		want   Impl // Auto: none
	}{
		{"one query", &h200, func(*Problem, *Options) {}, CoopMat},
		{"several", &h200, func(p *Problem, _ *Options) { p.SeqQ = 4 }, CoopMat},
		{"of a few heads, on scalar kernels", &h200, func(p *Problem, _ *Options) { p.DType = dtype.Float32 }, Scalar},
		{"of many heads, likewise", &h200, func(p *Problem, _ *Options) { p.DType, p.NumHeads, p.NumKVHeads = dtype.Float32, 64, 2 }, Auto},
		{"many", &h200, func(p *Problem, _ *Options) { p.SeqQ = 65 }, Auto},
		{"many rows of a group", &h200, func(p *Problem, _ *Options) { p.SeqQ, p.NumKVHeads = 16, 2 }, Auto},
		{"few keys", &h200, func(p *Problem, _ *Options) { p.SeqKV = 64 }, Auto},
		{"features", &h200, func(p *Problem, _ *Options) {
			p.Sinks, p.Softcap, p.ALiBi, p.ValueDim, p.Window = true, 30, ALiBiPerHead, 64, Window{On: true, Left: 100}
		}, CoopMat},
		{"one query looks as far to the right as it likes", &h200, func(p *Problem, _ *Options) { p.Causal, p.Window = false, Window{On: true, Left: 100, Right: 9} }, CoopMat},
		{"several do not", &h200, func(p *Problem, _ *Options) {
			p.SeqQ, p.Causal, p.Window = 2, false, Window{On: true, Left: 100, Right: 9}
		}, Auto},
		{"a bias, which may hide a key whose value is NaN", &h200, func(p *Problem, _ *Options) { p.Bias.On = true }, Auto},
		{"a key mask", &h200, func(p *Problem, _ *Options) { p.KeyMask = true }, Auto},
		{"dropout", &h200, func(p *Problem, _ *Options) { p.Dropout = Dropout{P: 0.5, Seeded: true} }, Auto},
		{"the other corner", &h200, func(p *Problem, _ *Options) { p.CausalAlign = TopLeft }, Auto},
		{"a forced path", &h200, func(_ *Problem, o *Options) { o.Impl = CoopMat }, Auto},
		{"forced tiles", &h200, func(_ *Problem, o *Options) {
			o.Config = &Config{Impl: CoopMat, Subgroups: 2, RowTiles: 1, BlockN: 16}
		}, Auto},
		{"forced tiles of decode", &h200, func(p *Problem, o *Options) {
			p.SeqKV, o.DecodeConfig = 3, &DecodeConfig{Impl: Scalar, Rows: 1, Subgroups: 1, Groups: 1}
		}, Scalar},
		{"a device without subgroups", &least, func(p *Problem, _ *Options) { p.DType = dtype.Float32 }, Auto},
	} {
		p, opt := few, Options{}
		c.change(&p, &opt)
		plan, err := Choose(c.caps, p, kit.Forward, opt)
		require.NoError(t, err, c.name)
		require.Equal(t, c.want, plan.Decode.Impl, c.name)
		require.Equal(t, c.want == Auto, plan.Config.Impl != Auto, c.name)
		require.Zero(t, plan.Workspace(), c.name)
	}
	masked := few
	masked.KeyMask = true
	opt := Options{DecodeConfig: &DecodeConfig{Impl: Scalar, Rows: 1, Subgroups: 1, Groups: 1}}
	require.EqualError(t, Supports(&h200, masked, kit.Forward, opt), "attention: decode_config: attention: decoding has no key_mask: unsupported on this device")
	opt.DecodeConfig.Rows = 3
	require.ErrorIs(t, Supports(&h200, few, kit.Forward, opt), vk.ErrUnsupported)
	few.SeqQ = 0
	require.EqualError(t, Supports(&h200, few, kit.Forward, opt), "attention: seq_q=0 is not positive")
}

// byGroup is by_group of lib/decode_work.glsl.
func byGroup(row, inverse uint32) uint32 {
	high, _ := bits.Mul32(2*row, inverse)
	return high
}

// TestGroupInverse divides rows around every multiple of some groups, up to the last that Feasible allows.
func TestGroupInverse(t *testing.T) {
	for _, group := range []int{1, 2, 3, 4, 5, 7, 8, 12, 96, 127, 1000, 4096, 5793, 8191, 8192, 32767} {
		rows := min(MaxDecodeQueries*group, mostByGroup/group)
		for row := 0; row < rows; row++ {
			if got := byGroup(uint32(row), groupInverse(group)); int(got) != row/group {
				t.Fatalf("%d / %d = %d, want %d", row, group, got, row/group)
			}
		}
	}
}

// TestDecodeRows wants an error for more rows of a key head than Decode supports.
func TestDecodeRows(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	p := DecodeProblem{Problem: Problem{Batch: 1, NumHeads: 8192, NumKVHeads: 1, SeqQ: 32, SeqKV: 64, HeadDim: 64, DType: dtype.Float32, Causal: true}}
	c := DecodeConfig{Impl: Scalar, Rows: 4, Subgroups: 8, Groups: 4}
	require.NoError(t, c.Feasible(&caps, p))
	require.NotEqual(t, p.SeqQ, int(byGroup(uint32(8192*33-1), groupInverse(8192))), "what a kernel would make of the last of 33 queries")
	p.SeqQ = 33
	require.EqualError(t, c.Feasible(&caps, p), "attention: decode: seq_q=33 of 8192 heads a key head are 270336 rows, more than the kernels' 262144: unsupported on this device")
}

// TestDecodeLayouts has drivers that answer as NVIDIA's 580 does but for one shape: a kernel that knows
// where elements of that are is never taken, the others are.
func TestDecodeLayouts(t *testing.T) {
	caps := chipstest.H200()
	p := DecodeProblem{Problem: Problem{Batch: 1, NumHeads: 8, NumKVHeads: 2, SeqQ: 1, SeqKV: 64, HeadDim: 128, DType: dtype.BFloat16, Causal: true}}
	cache8 := p
	cache8.Cache = CacheE4M3
	for _, c := range []struct {
		name    string
		liesFor uint32 // N of the shape
		problem DecodeProblem
		refused bool
	}{
		{"the truth", 0, p, false},
		{"the truth", 0, cache8, false},
		{"16x16", 16, p, true},
		{"16x16", 16, cache8, true},
		{"16x8", 8, p, false},
		{"16x8", 8, cache8, true},
	} {
		config := DecodeConfig{Impl: CoopMat, Rows: 16, Subgroups: 8, Groups: 4}
		var asked []dtype.DType
		err := config.checkLayout(caps, &c.problem, func(format dtype.DType, s vk.CoopMatShape) (bool, error) {
			asked = append(asked, format)
			return s.N != c.liesFor, nil
		})
		require.NotContains(t, asked, map[bool]dtype.DType{true: dtype.Float16, false: dtype.BFloat16}[c.problem.Cache == CacheSame], "the format of operands alone")
		if !c.refused {
			require.NoError(t, err, c.name)
			continue
		}
		require.ErrorIs(t, err, vk.ErrUnsupported, c.name)
		require.ErrorContains(t, err, "does not keep elements of "+c.name+" matrices")
		config.Impl = Scalar
		require.NoError(t, config.checkLayout(caps, &c.problem, nil), "the kernel without matrices asks nothing")
	}
	_, ok := chips.Shape16x8(caps, dtype.BFloat16)
	require.False(t, ok, "no device has them")
}

// TestDecodeFewKeys has an H200 whose four subgroups of a compute unit have a tile of keys each, and more keys than that.
func TestDecodeFewKeys(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	for _, c := range []struct {
		heads, kvHeads, queries, keys int
		want                          string
	}{
		{9, 3, 1, 1024, "coopmat,rows=8,subgroups=4,groups=48"},
		{32, 8, 1, 1024, "coopmat,rows=8,subgroups=4,groups=128"},
		{32, 8, 1, 1100, "coopmat,rows=8,subgroups=16,groups=132"},
		{32, 8, 4, 1024, "coopmat,rows=8,subgroups=16,groups=132"},
	} {
		p := DecodeProblem{CacheRows: 1, Problem: Problem{Batch: 1, NumHeads: c.heads, NumKVHeads: c.kvHeads, SeqQ: c.queries, SeqKV: c.keys, HeadDim: 64, DType: dtype.BFloat16}}
		plan, err := ChooseDecode(&caps, p, Options{})
		require.NoError(t, err)
		require.Equal(t, c.want, plan.Decode.String())
	}
}

// TestDecodeDetour has devices whose matrices are not NVIDIA's: rows of a key head that multiply-adds read twice
// take these, more take the kernel that knows no layout.
func TestDecodeDetour(t *testing.T) {
	devices := map[string]*vk.Caps{}
	for _, d := range fakeDevices() {
		devices[d.caps.Name] = &d.caps
	}
	amd, xe2 := devices["AMD Radeon RX 7900 XTX (RADV NAVI31)"], devices["Intel(R) Arc(tm) B580 Graphics (BMG G21)"]
	for _, c := range []struct {
		caps    *vk.Caps
		queries int
		cache   CacheFormat
		format  dtype.DType
		impl    Impl
		want    string
	}{
		{amd, 2, CacheSame, dtype.BFloat16, Auto, "scalar rows=4 subgroups=16 groups=96"},
		{amd, 3, CacheSame, dtype.BFloat16, Auto, "coopmat rows=16 subgroups=4 groups=96 detour"},
		{amd, 1, CacheSame, dtype.Float16, CoopMat, "coopmat rows=16 subgroups=4 groups=96 detour"},
		{amd, 8, CacheQ8_0, dtype.Float16, Auto, "coopmat rows=16 subgroups=4 groups=96 detour"},
		{amd, 8, CacheQ8_0, dtype.BFloat16, CoopMat, "attention: decode: coopmat: detour: a cache of 8 bits has no kernel for queries of bfloat16: unsupported on this device"},
		{amd, 8, CacheQ8_0, dtype.BFloat16, Auto, "scalar rows=4 subgroups=16 groups=96"},
		{xe2, 8, CacheSame, dtype.Float16, Auto, "coopmat rows=8 subgroups=4 groups=32 detour"},
	} {
		p := DecodeProblem{Problem: Problem{Batch: 2, NumHeads: 8, NumKVHeads: 2, SeqQ: c.queries, SeqKV: 512, HeadDim: 128, DType: c.format, Causal: true}, Cache: c.cache}
		plan, err := ChooseDecode(c.caps, p, Options{Impl: c.impl})
		got := strings.ReplaceAll(plan.Decode.String(), ",", " ")
		if err != nil {
			got = err.Error()
		}
		require.Equal(t, c.want, got)
	}
	p := DecodeProblem{Problem: Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: 8, HeadDim: 8, DType: dtype.Float16}}
	require.ErrorContains(t, DecodeConfig{Impl: CoopMat, Rows: 32, Subgroups: 2, Groups: 1, Detour: true}.Feasible(amd, p), "rows=32 are not the 16 of a matrix")
	odd := *amd
	odd.SubgroupSize = 8
	require.ErrorContains(t, DecodeConfig{Impl: CoopMat, Rows: 16, Subgroups: 2, Groups: 1, Detour: true}.Feasible(&odd, p), "subgroups of 8 do not divide matrices of 16x16")
	nvidia := nvidia("NVIDIA H200", 132, true)
	require.ErrorIs(t, DecodeConfig{Impl: CoopMat, Rows: 16, Subgroups: 1, Groups: 1, Detour: true}.Feasible(&nvidia, p), errLoneSubgroup)
	require.NoError(t, DecodeConfig{Impl: CoopMat, Rows: 16, Subgroups: 2, Groups: 1, Detour: true}.Feasible(&nvidia, p))
}

// TestDecodeFewerRows wants units of as many rows as were fastest on an H200, H32/8 D128.
func TestDecodeFewerRows(t *testing.T) {
	caps := nvidia("NVIDIA H200", 132, true)
	for _, c := range []struct{ batch, queries, keys, rows int }{
		{1, 1, 16384, 8}, {1, 2, 16384, 8}, {64, 1, 4096, 8},
		{1, 4, 1024, 8}, {1, 4, 4096, 8}, {1, 4, 16384, 16}, {2, 4, 1024, 8}, {2, 4, 4096, 16}, {16, 4, 4096, 16},
		{1, 8, 1024, 8}, {1, 8, 4096, 16}, {1, 8, 16384, 16}, {2, 8, 1024, 16}, {2, 8, 4096, 16}, {2, 8, 16384, 32}, {4, 8, 4096, 32}, {16, 8, 4096, 32},
		{1, 16, 1024, 32}, // not measured
	} {
		p := DecodeProblem{Problem: Problem{Batch: c.batch, NumHeads: 32, NumKVHeads: 8, SeqQ: c.queries, SeqKV: c.keys, HeadDim: 128, DType: dtype.BFloat16, Causal: true}}
		config, _, err := chooseDecode(&caps, p, Options{})
		require.NoError(t, err)
		require.Equal(t, c.rows, config.Rows, "%+v", c)
		p.Cache = CacheE4M3
		config, _, err = chooseDecode(&caps, p, Options{})
		require.NoError(t, err)
		require.Equal(t, min(max(nextPower(4*c.queries), 8), 32), config.Rows, "8 bits, %+v", c)
	}
}

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
