package attention_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk/kit"
)

// TestBackwardFeatureTiles runs features together on tiles that the tuning table does
// not take: of one word of dropout's bits and several, of one row of an invocation
// and several. Software gets pairs of features on the first of them, on the others all at once.
func TestBackwardFeatureTiles(t *testing.T) {
	d := vktest.Open(t)
	n := matrixSize(d)
	rows, both := heavy(d)
	combinations := backwardSuite(d).Where(func(c *attntest.Case) bool {
		return combined(d, c) && c.Problem.DType == dtype.Float16 && c.FLOPs() < 1e7
	})
	for i, config := range []attention.BackwardConfig{
		{
			Impl: attention.Scalar,
			DKV:  attention.BackwardTile{Threads: 64, ThreadsX: 8, Own: 8, Stream: 16, Depth: 8, Slice: 4},
			DQ:   attention.BackwardTile{Threads: 32, ThreadsX: 4, Own: 24, Stream: 4, Depth: 16, Slice: 4},
		},
		{
			Impl: attention.Scalar,
			DKV:  attention.BackwardTile{Threads: 128, ThreadsX: 16, Own: 48, Stream: 16, Depth: 16, Slice: 16},
			DQ:   attention.BackwardTile{Threads: 64, ThreadsX: 16, Own: 8, Stream: 64, Depth: 32, Slice: 32},
		},
		{
			Impl: attention.CoopMat2,
			DKV:  attention.BackwardTile{Subgroups: 4, RowTiles: rows, Stream: n, Prefetch: true},
			DQ:   attention.BackwardTile{Subgroups: 4, RowTiles: 1, Stream: n, Prefetch: true},
		},
		{
			Impl: attention.CoopMat,
			DKV:  attention.BackwardTile{Subgroups: 2, RowTiles: 1, Stream: n, Detour: true},
			DQ:   attention.BackwardTile{Subgroups: 2, RowTiles: 2, Stream: n, Detour: true},
		},
	} {
		t.Run(config.String(), func(t *testing.T) {
			vktest.Require(t, config.Impl.String(), pathError(d.Caps(), config.Impl))
			cases := combinations
			only := "" // these
			switch {
			case config.DQ.Detour && !both: // with two rows of matrices
				only = "all/packed/"
			case software(d) && onMatrices(config.Impl), i > 0 && !both:
				only = "all/"
			}
			cases = cases.Where(func(c *attntest.Case) bool { return strings.HasPrefix(c.Name, only) })
			attntest.TestBackward(t, cases, backwardOnDevice{d, attention.Options{BackwardConfig: &config}})
		})
	}
}

// TestBackwardBadLengths is TestBadLengths for gradients. Weights that are stored also have no window:
// a causal mask alone lays their pages out in another way.
func TestBackwardBadLengths(t *testing.T) {
	d := vktest.Open(t)
	p, tensor := packedProblem(d), guarded
	in := attntest.BackwardInputs{
		Inputs: badInputs(p),
		DO:     tensor("do", p.DType, 1, p.OShape()...), O: tensor("o", p.DType, 1, p.OShape()...), LSE: tensor("lse", dtype.Float32, 1, p.LSEShape()...),
	}
	var options []attention.Options
	for _, impl := range attention.Impls() {
		options = append(options, attention.Options{Impl: impl})
	}
	stored := storedConfigs(d)[0]
	options = append(options, attention.Options{Impl: stored.Impl, BackwardConfig: &stored}, attention.Options{Impl: stored.Impl, BackwardConfig: &stored})
	for n, opt := range options {
		p.Window.On = n < len(options)-1
		for i, cu := range badLengths {
			for _, p.Bias.Rows = range []bool{true, false} {
				in.Bias = tensor("bias", p.Bias.DType, 0, p.BiasShape()...)
				t.Run(fmt.Sprintf("%v/%d/%d/rows=%v", opt.Impl, n, i, p.Bias.Rows), func(t *testing.T) {
					if err := attention.Supports(d.Caps(), p, kit.Backward, opt); err != nil {
						t.Skip(err)
					}
					copy(in.CuSeqlensQ.Data[wide:], cu[0][:])
					copy(in.CuSeqlensKV.Data[wide:], cu[1][:])
					g := attntest.Gradients{
						DQ: tensor("dq", p.DType, canary, p.QShape()...), DK: tensor("dk", p.DType, canary, p.KShape()...), DV: tensor("dv", p.DType, canary, p.VShape()...),
						DBias: tensor("dbias", p.Bias.DType, canary, p.BiasShape()...), DSinks: tensor("dsinks", dtype.Float32, canary, p.SinksShape()...),
					}
					require.NoError(t, guard.Watch(in.List(), g.List(), func() error {
						return backwardOnDevice{d, opt}.Backward(g, in, p)
					}))
				})
			}
		}
	}
}

// TestBackwardFeatureKernels: a call without features runs kernels that know of none;
// one with them computes dbias and dsinks only where they are given, and the same
// again compiles nothing and allocates little.
func TestBackwardFeatureKernels(t *testing.T) {
	for _, impl := range attention.Impls() {
		t.Run(impl.String(), func(t *testing.T) {
			d := vktest.Open(t)
			p := attention.Problem{Batch: 2, NumHeads: 4, NumKVHeads: 2, SeqQ: 8, SeqKV: 8, HeadDim: 8, DType: dtype.Float16, Causal: true}
			withFeatures := p
			withFeatures.Sinks, withFeatures.Bias.On = true, true
			if err := attention.Supports(d.Caps(), withFeatures, kit.Backward, attention.Options{Impl: impl}); err != nil {
				t.Skip(err)
			}
			x := newBackwardArgs(t, d, p)
			x.opt.Impl = impl
			c, err := d.NewCmd("features")
			require.NoError(t, err)
			defer c.Close()
			record := func() {
				c.Reset()
				require.NoError(t, x.record(c))
			}
			kernels := func(part string) (n int) {
				for _, info := range d.CachedKernels() {
					if strings.Contains(info.Name, part) {
						n++
					}
				}
				return n
			}
			record()
			require.Zero(t, kernels("_features"))
			x.p = withFeatures
			x.in.Sinks, x.in.Bias = newTensor(t, d, dtype.Float32, x.p.SinksShape()), newTensor(t, d, dtype.Float32, x.p.BiasShape())
			record()
			require.NotZero(t, kernels("_features"))
			require.Zero(t, kernels("dbias")+kernels("dsinks")+kernels("sum"))
			x.g.DBias, x.g.DSinks = newTensor(t, d, dtype.Float32, x.p.BiasShape()), newTensor(t, d, dtype.Float32, x.p.SinksShape())
			record()
			require.Equal(t, 1, kernels("dbias"))
			require.Equal(t, 1, kernels("dsinks"))
			require.Equal(t, 1, kernels("sum"))
			all := len(d.CachedKernels())
			require.LessOrEqual(t, testing.AllocsPerRun(10, record), 200.0)
			require.Len(t, d.CachedKernels(), all)
		})
	}
}

// wide elements stand before and after a tensor that kernels may miss by far.
const wide = 4096

// guarded returns a contiguous tensor between wide guards, all of one value.
func guarded(name string, format dtype.DType, value float64, shape ...int) *guard.View {
	x := &guard.View{Name: name, DType: format, Offset: wide, Shape: shape, Strides: make([]int, len(shape))}
	n := 1
	for i := len(shape) - 1; i >= 0; i-- {
		x.Strides[i], n = n, n*shape[i]
	}
	x.Data = make([]float64, n+2*wide)
	x.Fill(func(int) float64 { return value })
	return x
}

// canary is what outputs of guarded hold before.
const canary = -12288

// badLengths are cumulative lengths of rows and of keys that break every rule.
var badLengths = [][2][4]float64{
	{{0, 40, 20, 40}, {0, 30, 10, 30}},
	{{-5, 60, 10, 70}, {-9, 50, -3, 99}},
	{{math.MaxInt32, math.MinInt32, math.MaxInt32, math.MinInt32}, {math.MinInt32, math.MaxInt32, math.MinInt32, math.MaxInt32}},
	{{math.MinInt32, math.MaxInt32, 0, math.MaxInt32}, {math.MaxInt32, math.MaxInt32, math.MinInt32, math.MinInt32}},
	{{39, 40, 41, 42}, {29, 30, 31, 32}},
}
