package attention_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A misled call gives a tensor the strides of another.
type misled struct {
	*attntest.Case
	of, like string
}

func (m misled) Host() call.Host {
	return m.Case.Host().With(func(t map[string]vk.Tensor) {
		x := t[m.of]
		x.Strides = t[m.like].Strides
		t[m.of] = x
	})
}

// TestMisled wants the cases of layouts to find strides of another tensor.
func TestMisled(t *testing.T) {
	d := vktest.Open(t)
	for _, x := range []struct {
		pass     kit.Pass
		of, like string
	}{{kit.Forward, "k", "v"}, {kit.Forward, "o", "q"}, {kit.Backward, "dq", "q"}, {kit.Backward, "do", "o"}} {
		t.Run(x.of, func(t *testing.T) {
			c := suite(d, x.pass).where(func(c *attntest.Case) bool { return c.Name == "layout/mixed/float32" })[0].On(attention.Options{Impl: attention.Scalar})
			k, record, err := call.Case(d.Caps(), &misled{c, x.of, x.like}, x.pass, call.Inputs(c))
			require.NoError(t, err)
			_, err = k.Check(d, record)
			require.Error(t, err)
		})
	}
}

// badLengths are cumulative lengths of rows and of keys that break every rule.
var badLengths = [][2][]float64{
	{{0, 40, 20, 40}, {0, 30, 10, 30}},
	{{-5, 60, 10, 70}, {-9, 50, -3, 99}},
	{{math.MaxInt32, math.MinInt32, math.MaxInt32, math.MinInt32}, {math.MinInt32, math.MaxInt32, math.MinInt32, math.MaxInt32}},
	{{math.MinInt32, math.MaxInt32, 0, math.MaxInt32}, {math.MaxInt32, math.MaxInt32, math.MinInt32, math.MinInt32}},
	{{39, 40, 41, 42}, {29, 30, 31, 32}},
}

// wide elements stand before and after a tensor that kernels may miss by far.
const wide = 4096

// TestBadLengths: cumulative lengths that break every rule neither crash nor lead a kernel to memory
// outside of its outputs. The problem has all features, whose kernels the suite has, so that lavapipe
// compiles none; a window hides nothing among a few sequences. Weights that are stored also have no
// window: a causal mask alone lays their pages out in another way.
func TestBadLengths(t *testing.T) {
	d := vktest.Open(t)
	options := []attention.Options{}
	for _, impl := range attention.Impls() {
		options = append(options, attention.Options{Impl: impl})
	}
	stored := storedConfigs(d)[0]
	options = append(options, attention.Options{BackwardConfig: &stored}, attention.Options{BackwardConfig: &stored})
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		for n, opt := range options {
			for _, rows := range []bool{true, false} {
				c := *suite(d, pass).where(func(c *attntest.Case) bool { return c.Name == "all/packed/float16" })[0].On(opt)
				c.NumHeads, c.NumKVHeads, c.Lengths, c.Slack, c.HidingBias, c.Bias.Rows = 2, 1, [][2]int{{20, 15}, {10, 10}, {10, 5}}, 0, false, rows
				c.Window.Left = 1 << 30
				c.Window.On = n < len(options)-1
				c.Pack()
				if _, err := c.Host().Choose(d.Caps(), pass); err != nil || opt.BackwardConfig != nil && pass == kit.Forward {
					continue
				}
				k, record, err := call.Case(d.Caps(), &c.Attention, pass, call.Inputs(&c.Attention))
				require.NoError(t, err)
				for i := range k.Tensors {
					x := &k.Tensors[i]
					x.Scratch, x.Want, x.Part = x.Want != nil, nil, nil
					x.Place = &guard.Place{Offset: wide, After: wide, Strides: vk.View(&vk.Buffer{}, x.DType, x.Shape...).Strides}
				}
				for i, cu := range badLengths {
					t.Run(fmt.Sprintf("%v/%v/%d/rows=%v/%d", pass, opt.Impl, n, rows, i), func(t *testing.T) {
						for j := range k.Tensors {
							switch x := &k.Tensors[j]; x.Name {
							case "cu_seqlens_q":
								x.Values = cu[0]
							case "cu_seqlens_kv":
								x.Values = cu[1]
							}
						}
						_, err := k.Check(d, record)
						require.NoError(t, err)
					})
				}
			}
		}
	}
}

// TestRecordAgain says that a call without features runs kernels that know of none, a call with some
// kernels that do, with dbias and dsinks only where they are given; and that the same again compiles
// nothing and allocates little.
func TestRecordAgain(t *testing.T) {
	for _, impl := range append(attention.Impls(), attention.Auto) {
		t.Run(impl.String(), func(t *testing.T) {
			d := vktest.Open(t)
			plain := call.Attention{Problem: attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 8, SeqKV: 8, HeadDim: 8, DType: dtype.Float16, Causal: true}, Impl: impl}
			backward, f32 := plain, plain
			backward.Backward, f32.DType = true, dtype.Float32
			window, features := plain, backward
			window.Window = attention.Window{On: true, Left: 3}
			features.Sinks, features.Bias.On, features.NoDBias = true, true, true
			gradients := features
			gradients.NoDBias = false
			seen := map[string]int{}
			for i, c := range []*call.Attention{&plain, &f32, &backward, &window, &features, &gradients} {
				if _, err := c.Host().Choose(d.Caps(), c.Pass()); err != nil {
					t.Skip(err)
				}
				on := uploaded(t, d, c, call.Inputs(c))
				cmd, err := d.NewCmd("again")
				require.NoError(t, err)
				defer cmd.Close()
				var in attention.Tensors
				var g attention.Gradients
				call.Bind(on, &in, &g)
				record := func() {
					cmd.Reset()
					if c.Backward {
						err = attention.Backward(cmd, in, g, c.Problem, attention.Options{Impl: impl})
					} else {
						err = attention.Forward(cmd, in, c.Problem, attention.Options{Impl: impl})
					}
					require.NoError(t, err)
				}
				record()
				all := d.CachedKernels()
				require.LessOrEqual(t, testing.AllocsPerRun(10, record), []float64{26, 26, 55, 33, 78, 107}[i])
				require.Len(t, d.CachedKernels(), len(all))
				now := map[string]int{}
				for _, k := range all {
					for _, part := range []string{"_features", "dbias", "dsinks", "sum"} {
						if strings.Contains(k.Name, part) {
							now[part]++
						}
					}
				}
				require.Equal(t, i >= 3, now["_features"] > 0, i)
				require.Equal(t, i == 5, now["dbias"] == 1 && now["dsinks"] == 1 && now["sum"] == 1, now)
				require.GreaterOrEqual(t, now["_features"], seen["_features"])
				seen = now
			}
		})
	}
}

// TestSplitsKernels says that a sequence that grows, and is divided among more and more workgroups, does
// not have kernels compiled for each number of them.
func TestSplitsKernels(t *testing.T) {
	d := vktest.Open(t)
	kernels := map[int]int{} // by the number of splits that were run
	for splits := 2; splits <= 15; splits++ {
		c := call.Attention{
			Problem: attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 1, SeqKV: 16 * splits, HeadDim: 64},
			Config:  &attention.Config{Impl: attention.Scalar, Threads: 64, ThreadsX: 8, BlockM: 16, BlockN: 16, Depth: 16, ValueRows: 4, Splits: splits},
		}
		submit(t, d, &c, uploaded(t, d, &c, call.Inputs(&c)))
		kernels[splits] = len(d.CachedKernels())
	}
	require.Equal(t, 2, kernels[2], "the fused kernel and the one that combines two splits at a time")
	require.Equal(t, 4, kernels[15], "and four and eight")
}

// TestDecodeCounters records calls of Forward on the kernels of Decode that share memory for their
// counters, in one Cmd that runs several times, and wants the same bits from each.
func TestDecodeCounters(t *testing.T) {
	d := vktest.Open(t)
	c := call.Attention{
		Problem:      attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 500, HeadDim: 16, DType: dtype.Float16, Causal: true},
		DecodeConfig: &attention.DecodeConfig{Impl: attention.Scalar, Rows: 2, Subgroups: 2, Groups: 9},
	}
	on := uploaded(t, d, &c, call.Inputs(&c))
	cmd, err := d.NewCmd("counters")
	require.NoError(t, err)
	defer cmd.Close()
	var first []float32
	for range 2 {
		for range 3 {
			require.NoError(t, c.Host().Bind(on, nil, kit.Forward)(cmd))
		}
		for range 3 {
			require.NoError(t, on["o"].Zero(t.Context()))
			require.NoError(t, cmd.Submit(t.Context()))
			if got := elements(t, on["o"]); first == nil {
				first = got
			} else {
				require.True(t, sameBits(first, got))
			}
		}
		cmd.Reset()
	}
}

// TestBackwardScales multiplies inputs by powers of two. No float32 rounds differently then, so the
// gradients must be the same but for another power of two, bit by bit, whether numbers in a kernel
// have an exponent of their own or none.
//
// lavapipe keeps float32 where a matrix of float16 comes from a matrix of float32; the Detour,
// through shared memory, rounds there, too. TestBackwardConfigs has the kernels of the Detour,
// causal, and TestBackward the other kernels, dense.
func TestBackwardScales(t *testing.T) {
	d := vktest.Open(t)
	detour := f32x2Configs(d)[2]
	detour.DQ.RowTiles = 1 // two do not fit beside head_dim 8 on matrices of 16
	options := []attention.Options{{Impl: detour.Impl, BackwardConfig: &detour}}
	for _, impl := range attention.Impls() {
		options = append(options, attention.Options{Impl: impl})
	}
	for i, opt := range options {
		t.Run(fmt.Sprintf("%v/%d", opt.Impl, i), func(t *testing.T) {
			vktest.Require(t, opt.Impl.String(), pathError(d.Caps(), opt.Impl))
			c := &call.Attention{Problem: attention.Problem{Batch: 1, NumHeads: 2, NumKVHeads: 1, SeqQ: 40, SeqKV: 33, HeadDim: 8, Causal: i == 0}}
			c.Backward, c.Impl, c.BackwardConfig = true, opt.Impl, opt.BackwardConfig
			gradients := func(do, v, k float64) map[string][]float32 {
				x := call.Inputs(c)
				for name, by := range map[string]float64{"do": do, "v": v, "k": k, "q": 1 / k} {
					for i := range x[name] {
						x[name][i] *= by
					}
				}
				on := uploaded(t, d, c, x)
				submit(t, d, &call.Attention{Problem: c.Problem, Impl: attention.Scalar}, on)
				submit(t, d, c, on)
				return map[string][]float32{"dq": elements(t, on["dq"]), "dk": elements(t, on["dk"]), "dv": elements(t, on["dv"])}
			}
			want := gradients(1, 1, 1)
			require.Greater(t, slices.Max(want["dq"]), float32(0.1))
			for _, s := range [][3]float64{{0x1p-30, 1, 1}, {0x1p40, 1, 1}, {1, 0x1p-30, 1}, {1, 0x1p40, 1}, {1, 1, 0x1p-20}, {1, 1, 0x1p20}, {0x1p-20, 0x1p-20, 0x1p20}} {
				do, v, k := s[0], s[1], s[2]
				got := gradients(do, v, k)
				for name, by := range map[string]float64{"dq": do * v * k, "dk": do * v / k, "dv": do} {
					for i, x := range want[name] {
						require.Equal(t, x*float32(by), got[name][i], "%s, %v", name, s)
					}
				}
			}
		})
	}
}

// TestEqualWeights has many keys of the same weight, which is no round number: additions of it to a
// float32 sum round in the same direction. Matrix paths add the sum of a key tile at a time. Each of those
// additions is off by u of the sum so far at most, and so all of them by half of their number.
func TestEqualWeights(t *testing.T) {
	const keys, first, blockN = 1 << 16, 128, 32 // the weight of the first keys is 2^HEADROOM
	const u = 0x1p-24
	p := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 1, SeqKV: keys, HeadDim: 8, DType: dtype.Float32, Scale: 1}
	d := vktest.Open(t)
	for _, impl := range []attention.Impl{attention.CoopMat2, attention.CoopMat} {
		t.Run(impl.String(), func(t *testing.T) {
			plan, err := attention.Choose(d.Caps(), p, kit.Forward, attention.Options{Impl: impl})
			vktest.Require(t, impl.String(), err)
			plan.Config.BlockN, plan.Config.Splits = blockN, 1
			for _, logit := range []float32{0x1.bp-14, 0x1.dp-14} {
				x := attention.HostTensors{
					Q: make([]float32, p.HeadDim), K: make([]float32, keys*p.HeadDim), V: make([]float32, keys*p.HeadDim),
					O: make([]float32, p.HeadDim), LSE: make([]float32, 1),
				}
				x.Q[0] = 1
				for j := first; j < keys; j++ {
					x.K[j*p.HeadDim] = logit
				}
				require.NoError(t, attention.ForwardHost(t.Context(), d, x, p, attention.Options{Config: &plan.Config}))
				want := math.Log(first + (keys-first)*math.Exp(float64(logit)))
				require.InDelta(t, want, x.LSE[0], u*(keys/blockN/2+3*want))
			}
		})
	}
}

// TestRepeatedMaxima has rows of two keys with the largest score, whose weights are exactly 1, others of hardly any,
// and values below 0. Where the sum of weights times values is a bfloat16, it lies between two numbers for half
// of the values, and what the others add rounds it down: a bias that makes trainings diverge
// (arXiv:2510.04212). Ours are float32, with Quant too: the mean error of O is a small part of its last place.
func TestRepeatedMaxima(t *testing.T) {
	const batch, rows, keys, dim = 16, 16, 256, 16
	d := vktest.Open(t)
	rng := rand.New(rand.NewPCG(1, 2))
	x := attention.HostTensors{Q: make([]float32, batch*rows*dim), K: make([]float32, batch*keys*dim), V: make([]float32, batch*keys*dim), O: make([]float32, batch*rows*dim)}
	for _, format := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
		for i := range batch * rows {
			x.Q[i*dim+i%dim] = format.Round(8 - rng.Float32())
		}
		for i := range x.V {
			x.V[i] = format.Round(-2 - 2*rng.Float32())
		}
		for i := range batch * 2 * dim {
			x.K[(i/(2*dim)*keys+i%(2*dim))*dim+i/2%dim] = 7.375
		}
		bias := func(o []float32) (mean float64) {
			for i, y := range o {
				row, exact, sum := i/dim, 0.0, 0.0
				for j := range keys {
					w := math.Exp(float64(x.Q[row*dim+row%dim]) * float64(x.K[(row/rows*keys+j)*dim+row%dim]) / 4)
					exact, sum = exact+w*float64(x.V[(row/rows*keys+j)*dim+i%dim]), sum+w
				}
				mean += (float64(y) - exact/sum) / (2 * format.Eps()) / float64(len(o))
			}
			return mean
		}
		for _, impl := range attention.Impls() {
			for _, quant := range []dtype.Quant{dtype.NoQuant, dtype.QuantInt8} {
				t.Run(fmt.Sprint(format, impl, quant), func(t *testing.T) {
					p := attention.Problem{Batch: batch, NumHeads: 1, NumKVHeads: 1, SeqQ: rows, SeqKV: keys, HeadDim: dim, DType: format, Quant: quant}
					opt := attention.Options{Impl: impl}
					if err := attention.Supports(d.Caps(), p, kit.Forward, opt); err != nil {
						t.Skip(err)
					}
					require.NoError(t, attention.ForwardHost(t.Context(), d, x, p, opt))
					most := 0.02
					if format == dtype.Float16 && (impl == attention.CoopMat2 || impl == attention.CoopMat) {
						most = 0.03 // an H200's matrices cut sums off: -0.0284
					}
					require.InDelta(t, 0, bias(x.O), most)
					v := x.V[0]
					x.V[0] = float32(math.NaN()) // kernels that round finite results faster must see that this one is none
					require.NoError(t, attention.ForwardHost(t.Context(), d, x, p, opt))
					require.True(t, math.IsNaN(float64(x.O[0])))
					x.V[0] = v
				})
			}
		}
		for i := range x.O { // what a sum in the format would be
			v := x.V[(i/dim/rows*keys+i/dim%dim*2)*dim+i%dim:]
			x.O[i] = format.Round(format.Round(v[0]+v[dim]-1e-4) / 2)
		}
		require.Less(t, bias(x.O), -0.2)
	}
}

// TestErrors has the mistakes that TestArguments of package tests leaves out: options, a hint, and
// memory.
func TestErrors(t *testing.T) {
	d := vktest.Open(t)
	small, err := d.NewBuffer("small", 191)
	require.NoError(t, err)
	defer small.Close()
	config := func(o *attention.Options, _ map[string]vk.Tensor) { o.Config = &attention.Config{} }
	for _, row := range []struct {
		pass   kit.Pass
		change func(o *attention.Options, t map[string]vk.Tensor)
		want   string
	}{
		{kit.Forward, config, "impl auto is not a path"},
		{kit.Backward, config, "Options.Config is of the forward pass, the backward pass takes Options.BackwardConfig"},
		{kit.Backward, func(o *attention.Options, _ map[string]vk.Tensor) { o.Workspace = small }, "workspace has 191 bytes, want 192"},
		{kit.Forward, func(_ *attention.Options, t map[string]vk.Tensor) {
			t["q"] = t["q"].Permute(0, 2, 1, 3)
		},
			"q has shape [2 3 4 8] and strides [96 8 24 1], want shape [2 4 3 8]: (batch, num_heads, seq_q, head_dim); Tensor.Permute(0, 2, 1, 3) is a view with these axes"},
	} {
		c := &call.Attention{Problem: attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 3, SeqKV: 5, HeadDim: 8, DType: dtype.Float16}, Direction: call.Direction{Backward: row.pass == kit.Backward}}
		on, o := uploaded(t, d, c, call.Inputs(c)), attention.Options{}
		row.change(&o, on)
		c.Impl, c.Config, c.BackwardConfig = o.Impl, o.Config, o.BackwardConfig
		refuse(t, d, "attention: "+row.want, c.Host().Bind(on, o.Workspace, row.pass))
	}
}
