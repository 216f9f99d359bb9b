package attention_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/cover"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func size(shape []int) int {
	n := 1
	for _, s := range shape {
		n *= s
	}
	return n
}

// uploaded returns tensors of a call on a device, contiguous, from what Inputs returns.
func uploaded(t *testing.T, dev *vk.Device, c call.Call, x call.Values) map[string]vk.Tensor {
	list := map[string]vk.Tensor{}
	for _, in := range c.Tensors() {
		if in.Off {
			continue
		}
		y := vktest.Tensor(t, dev, in.DType, in.Shape...)
		list[in.Name] = y
		if in.Role == call.Output || in.Role == call.Gradient {
			continue
		}
		if in.DType == dtype.Int32 {
			data := make([]int32, len(x[in.Name]))
			for i, n := range x[in.Name] {
				data[i] = int32(n)
			}
			require.NoError(t, y.UploadInts(t.Context(), data))
			continue
		}
		data := make([]float32, len(x[in.Name]))
		for i, n := range x[in.Name] {
			data[i] = float32(n)
		}
		require.NoError(t, y.Upload(t.Context(), data))
	}
	return list
}

// submit runs a call on tensors.
func submit(t *testing.T, dev *vk.Device, c call.Call, on map[string]vk.Tensor) {
	cmd, err := dev.NewCmd("call")
	require.NoError(t, err)
	defer cmd.Close()
	require.NoError(t, c.Record(cmd, on, nil, c.Pass()))
	require.NoError(t, cmd.Submit(t.Context()))
}

func sameBits(a, b []float32) bool {
	for i := range a {
		if math.Float32bits(a[i]) != math.Float32bits(b[i]) {
			return false
		}
	}
	return len(a) == len(b)
}

// decodeCases are problems with every feature, sizes that fill nothing, and lengths from nothing
// to the capacity.
func decodeCases() []call.Decode {
	problem := func(heads, kv, seqQ, capacity, dim int, change func(p *attention.DecodeProblem), lens ...int) call.Decode {
		c := call.Decode{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
			Batch: len(lens), NumHeads: heads, NumKVHeads: kv, SeqQ: seqQ, SeqKV: capacity, HeadDim: dim, DType: dtype.Float16, Causal: true,
		}, NewKeys: seqQ}, Lens: lens, Scales: call.AllScales, Data: call.Data{Seed: uint64(capacity), Magnitude: 2}}
		if change != nil {
			change(&c.DecodeProblem)
		}
		return c
	}
	type P = attention.DecodeProblem
	return []call.Decode{
		problem(4, 1, 1, 300, 64, nil, 299),
		problem(1, 1, 1, 100, 128, nil, 0, 1, 99, 50),
		problem(8, 2, 1, 1000, 128, func(p *P) { p.DType = dtype.BFloat16 }, 900, 0, 333),
		problem(2, 2, 1, 333, 256, func(p *P) { p.DType = dtype.Float32 }, 332, 17),
		problem(6, 2, 4, 200, 96, nil, 100, 196, 0),
		problem(4, 4, 8, 128, 80, func(p *P) { p.DType = dtype.Float32 }, 120, 3),
		problem(12, 1, 1, 512, 40, nil, 511, 64),
		problem(4, 2, 3, 256, 64, func(p *P) { p.NewKeys, p.Causal = 0, false }, 256, 3, 0),
		problem(4, 2, 5, 256, 64, func(p *P) { p.NewKeys = 0 }, 256, 2, 0),
		problem(4, 2, 2, 256, 64, func(p *P) { p.PageSize, p.Pages = 16, 64 }, 254, 30, 0),
		problem(4, 1, 1, 512, 128, func(p *P) { p.PageSize, p.Pages, p.DType = 8, 200, dtype.BFloat16 }, 511, 8, 100),
		problem(4, 1, 1, 512, 64, func(p *P) { p.PageSize, p.Pages = 256, 7 }, 511, 255, 256),
		problem(4, 2, 1, 128, 64, func(p *P) { p.CacheRows = 5 }, 127, 3, 64),
		problem(4, 2, 2, 400, 64, func(p *P) { p.Window = attention.Window{On: true, Left: 50} }, 398, 20, 0),
		problem(4, 2, 1, 400, 64, func(p *P) { p.Softcap = 3 }, 399, 20),
		problem(4, 2, 2, 400, 64, func(p *P) { p.ALiBi = attention.ALiBiPerHead }, 398, 20),
		problem(4, 2, 2, 400, 64, func(p *P) { p.ALiBi = attention.ALiBiPerBatchHead }, 398, 20),
		problem(4, 2, 2, 100, 64, func(p *P) { p.Bias = attention.Bias{On: true, DType: dtype.Float32, Heads: true, Rows: true} }, 98, 20),
		problem(4, 2, 2, 100, 64, func(p *P) { p.Bias = attention.Bias{On: true, DType: dtype.Float16, Batch: true} }, 98, 20),
		problem(4, 2, 1, 300, 64, func(p *P) { p.Sinks = true }, 299, 0),
		problem(4, 2, 1, 300, 64, func(p *P) { p.Sinks, p.NewKeys = true, 0 }, 299, 0),
		problem(4, 2, 1, 300, 64, func(p *P) { p.LeftPad = true }, 299, 20, 0),
		problem(4, 2, 7, 300, 64, func(p *P) { p.Tree, p.Causal = true, false }, 293, 20, 0),
		problem(2, 1, 64, 300, 64, func(p *P) { p.Tree, p.Causal = true, false }, 236, 20, 0),
		problem(4, 2, 1, 300, 64, func(p *P) { p.ValueDim = 128 }, 299, 20),
		problem(4, 2, 1, 300, 128, func(p *P) { p.ValueDim = 40 }, 299, 20),
		problem(4, 2, 1, 300, 72, func(p *P) { p.Scale = -0.3 }, 299, 20),
		problem(4, 2, 2, 512, 64, func(p *P) {
			p.PageSize, p.Pages, p.Sinks, p.Softcap, p.LeftPad = 32, 100, true, 20, true
			p.Window = attention.Window{On: true, Left: 200, Right: attention.Unlimited}
			p.ALiBi = attention.ALiBiPerBatchHead
			p.Bias = attention.Bias{On: true, DType: dtype.Float32, Heads: true}
			p.ValueDim = 32
		}, 500, 33, 0, 100),
	}
}

// cache8Cases are those of decodeCases that a cache of 8 bits can have, in both formats. Software has,
// unless there is time, one with every feature that changes scores and those without: scores do not know
// what a key was stored as, and each feature is another kernel.
func cache8Cases(dev *vk.Device) (list []call.Decode) {
	for _, c := range decodeCases() {
		scores := c.Window.On || c.Softcap != 0 || c.ALiBi != attention.ALiBiOff || c.Bias.On || c.Sinks || c.LeftPad || c.Tree
		if scores && c.PageSize == 0 && !vktest.Thorough(dev) {
			continue
		}
		for _, c.Cache = range []attention.CacheFormat{attention.CacheE4M3, attention.CacheQ8_0} {
			if c.DType == dtype.Float32 {
				c.DType = dtype.BFloat16
			}
			if c.Validate() == nil {
				list = append(list, c)
			}
		}
	}
	return list
}

// TestDecode compares decoding with float64, on the path that the device takes and on the one that every
// device has.
func TestDecode(t *testing.T) {
	dev := vktest.Open(t)
	for _, c := range slices.Concat(decodeCases(), cache8Cases(dev)) {
		t.Run(fmt.Sprintf("%v/lens=%v", c.DecodeProblem, c.Lens), func(t *testing.T) {
			call.Test(t, dev, &c, nil, guard.Packed, kit.Forward)
			scalar, err := attention.ChooseDecode(dev.Caps(), c.DecodeProblem, attention.Options{Impl: attention.Scalar})
			require.NoError(t, err)
			taken, err := attention.ChooseDecode(dev.Caps(), c.DecodeProblem, attention.Options{})
			require.NoError(t, err)
			if c.Config = &scalar.Decode; taken.Decode != scalar.Decode {
				call.Test(t, dev, &c, nil, guard.Packed, kit.Forward)
			}
		})
	}
}

// TestDecodeConfigs is TestDecode with every feasible way to divide the work. Software has, unless there is
// time, those in which any two choices of a kernel meet.
func TestDecodeConfigs(t *testing.T) {
	dev := vktest.Open(t)
	var all []call.Decode
	add := func(config attention.DecodeConfig) {
		for _, cache := range []attention.CacheFormat{attention.CacheSame, attention.CacheE4M3, attention.CacheQ8_0} {
			c := decodeCases()[4]
			c.Cache, c.Config = cache, &config
			if config.Feasible(dev.Caps(), c.DecodeProblem) == nil {
				all = append(all, c)
			}
		}
	}
	for _, groups := range []int{1, 3, 17, 100} {
		for n := 1; n <= 8; n *= 2 {
			add(attention.DecodeConfig{Impl: attention.Scalar, Rows: n, Subgroups: 1 + (n+groups)%4, Groups: groups})
		}
		for _, rows := range []int{8, 16, 32} {
			for _, n := range []int{1, 2, 4, 8, 12} {
				add(attention.DecodeConfig{Impl: attention.CoopMat, Rows: rows, Subgroups: n, Groups: groups})
			}
		}
	}
	if !vktest.Thorough(dev) {
		all = cover.Pairs(all, func(x call.Decode) []any { return []any{x.Config.Impl, x.Config.Rows, x.Config.Subgroups, x.Cache} },
			func(x call.Decode) []any { return []any{x.Config.Groups} })
	}
	for _, c := range all {
		t.Run(fmt.Sprintf("%v/%v", c.Config, c.Cache), func(t *testing.T) { call.Test(t, dev, &c, nil, guard.Packed, kit.Forward) })
	}
}

// TestDecodeInfinite has an infinite value: its column of O is infinite or NaN in the rows that see it and
// may be NaN in those that share its key, where one more column may be NaN; all else has the bits that it has
// without it.
func TestDecodeInfinite(t *testing.T) {
	dev := vktest.Open(t)
	for _, impl := range []attention.Impl{attention.CoopMat, attention.Scalar} {
		for _, format := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
			for _, dim := range []int{64, 96, 128, 256} {
				c := call.Decode{DecodeProblem: attention.DecodeProblem{Problem: attention.Problem{
					Batch: 2, NumHeads: 8, NumKVHeads: 2, SeqQ: 2, SeqKV: 256, HeadDim: dim, DType: format, Causal: true,
				}}, Lens: []int{200, 90}, Data: call.Data{Magnitude: 2}}
				t.Run(fmt.Sprintf("%v/%v/%v", impl, format, dim), func(t *testing.T) {
					plan, err := attention.ChooseDecode(dev.Caps(), c.DecodeProblem, attention.Options{Impl: impl})
					if impl == attention.CoopMat && errors.Is(err, vk.ErrUnsupported) {
						t.Skip("not NVIDIA's matrices")
					}
					require.NoError(t, err)
					c.Config = &plan.Decode
					x := call.Inputs(&c)
					run := func() []float32 {
						on := uploaded(t, dev, &c, x)
						submit(t, dev, &c, on)
						return elements(t, on["o"])
					}
					finite := run()
					for _, at := range []struct{ key, column, from int }{{7, 3, 0}, {199, dim - 1, 1}} { // from: the first query that sees the key
						element := &x["v"][at.key*dim+at.column]
						old := *element
						*element = math.Inf(1)
						o := run()
						*element = old
						checkInfinite(t, &c, at.column, at.from, finite, o)
					}
				})
			}
		}
	}
}

// checkInfinite compares O with what it is without an infinite value in a column of the first key head.
func checkInfinite(t *testing.T, c *call.Decode, column, from int, finite, o []float32) {
	isNaN := func(x float32) bool { return math.IsNaN(float64(x)) }
	for row := range len(o) / c.HeadDim {
		shares := row/c.SeqQ < c.NumHeads/c.NumKVHeads
		sees := shares && row%c.SeqQ >= from
		others := 0
		for e := range c.HeadDim {
			x, want := o[row*c.HeadDim+e], finite[row*c.HeadDim+e]
			switch {
			case sees && e == column:
				require.True(t, isNaN(x) || math.IsInf(float64(x), 1), "row %d, the column of the infinite value: %v", row, x)
			case math.Float32bits(x) == math.Float32bits(want):
			default:
				require.True(t, shares && isNaN(x), "row %d, column %d = %v, without the infinite value %v", row, e, x, want)
				if e != column {
					others++
				}
			}
		}
		require.LessOrEqual(t, others, 1, "row %d: columns that are NaN beside that of the infinite value", row)
	}
}
