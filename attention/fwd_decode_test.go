package attention

import (
	"encoding/csv"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestForwardRule wants the rule to follow what was measured: what it takes is not slower than
// what it leaves by more than two runs differ, but for the cases that the rule is too simple for.
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
			p.Sinks, p.Softcap, p.ALiBi, p.Bias.On, p.ValueDim, p.Window = true, 30, ALiBiPerHead, true, 64, Window{On: true, Left: 100}
		}, CoopMat},
		{"one query looks as far to the right as it likes", &h200, func(p *Problem, _ *Options) { p.Causal, p.Window = false, Window{On: true, Left: 100, Right: 9} }, CoopMat},
		{"several do not", &h200, func(p *Problem, _ *Options) {
			p.SeqQ, p.Causal, p.Window = 2, false, Window{On: true, Left: 100, Right: 9}
		}, Auto},
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
