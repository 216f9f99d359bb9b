package engine_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// roundings are values of float16. Multiplied by roundingScale, they tell the rounding of C to 16
// bits from other roundings: halves of the last place of a bfloat16 above an even and an odd one,
// less and more than that, values that become infinite or just do not, and values that are not
// finite.
var roundings = []float32{
	0, 1, -1, 1.00390625, 1.01171875, -1.00390625, -1.01171875, 1.0029296875, 1.0048828125,
	65504, -65504, 65088, 65280, 0x1p-14, 0x1p-24, -0x1.8p-23, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
}

// scalarRoundings are those and values of float32: the NaNs whose bits are all ones, which
// rounding would carry over into a zero, and the halves around the largest bfloat16.
var scalarRoundings = append(slices.Clone(roundings), math.Float32frombits(0x7fffffff), math.Float32frombits(0xffffffff),
	math.Float32frombits(0x7f7f7fff), math.Float32frombits(0x7f7f8000), -math.MaxFloat32)

// randomNumbers returns numbers of a format, as float32 of random bits, as float16 of all exponents;
// none that devices may take for 0 as float32, or that is not finite.
func randomNumbers(format dtype.DType, n int) []float32 {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	var list []float32
	for len(list) < n {
		x := math.Float32frombits(rng.Uint32())
		if format == dtype.Float16 {
			x = dtype.Float16.Round(float32(math.Ldexp(float64(2*rng.Float32()-1), rng.IntN(40)-24)))
		}
		if size := math.Abs(float64(x)); size >= 0x1p-100 && size <= math.MaxFloat32 {
			list = append(list, x)
		}
	}
	return list
}

// TestRounding wants numbers of C rounded to nearest even, overflow to infinity, and NaN
// kept, in words, in pairs and alone: rows of A have one number that is not 0, and B is ones.
// Path scalar rounds one number at a time, the sums of its splits in words.
func TestRounding(t *testing.T) {
	splits, err := engine.ParseConfig("scalar 16x32 t4x8 k8 g1 splits2")
	require.NoError(t, err)
	direct, err := engine.ParseConfig(fmt.Sprintf("coopmat s1x1 t1x8 k%d packb g1", side(vktest.Open(t))))
	require.NoError(t, err)
	for _, out := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
		testRounding(t, engine.Problem{N: 16, K: 1, Alpha: 0x1p112, DType: dtype.Float16, Out: out}, engine.CoopMat, engine.Options{Config: &direct}, roundings)
		for _, n := range []int{16, 13} {
			for _, impl := range engine.Impls() {
				for _, scale := range []float64{1, 0x1p112, 0x1p-112} {
					p := engine.Problem{N: n, K: 1, Alpha: scale, DType: dtype.Float16, Out: out}
					testRounding(t, p, impl, engine.Options{Impl: impl}, roundings)
				}
				p := engine.Problem{N: n, K: 1, Alpha: 0.7, DType: dtype.Float16, Out: out}
				testRounding(t, p, impl, engine.Options{Impl: impl}, randomNumbers(dtype.Float16, 999))
			}
			p := engine.Problem{N: n, K: 16, DType: dtype.Float32, Out: out}
			testRounding(t, p, engine.Scalar, engine.Options{Config: &splits}, scalarRoundings)
			testRounding(t, p, engine.Scalar, engine.Options{Config: &splits}, randomNumbers(dtype.Float32, 999))
		}
	}
}

func testRounding(t *testing.T, p engine.Problem, impl engine.Impl, opt engine.Options, values []float32) {
	p.M = len(values)
	t.Run(impl.String()+" "+p.String(), func(t *testing.T) {
		d := vktest.Open(t)
		_, err := engine.Choose(d.Caps(), p, opt)
		vktest.Require(t, impl.String(), err)
		checkRounding(t, d, p, opt, values)
	})
}

func checkRounding(t *testing.T, d *vk.Device, p engine.Problem, opt engine.Options, values []float32) {
	ctx := context.Background()
	rows, ones := make([]float32, p.M*p.K), slices.Repeat([]float32{1}, p.K*p.N)
	for i, x := range values {
		rows[i*p.K] = x
	}
	var tensors [3]vk.Tensor
	for i, x := range []struct {
		format dtype.DType
		shape  []int
		data   []float32
	}{{p.DType, p.AShape(), rows}, {p.DType, p.BShape(), ones}, {p.Out, p.CShape(), nil}} {
		var err error
		tensors[i], err = d.NewTensor("rounding", x.format, x.shape...)
		require.NoError(t, err)
		defer tensors[i].Close()
		if x.data != nil {
			require.NoError(t, tensors[i].Upload(ctx, x.data))
		}
	}
	c, err := d.NewCmd("rounding")
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, engine.Multiply(c, engine.Tensors{A: tensors[0], B: tensors[1], C: tensors[2]}, p, opt))
	require.NoError(t, c.Submit(ctx))
	got := make([]float32, p.M*p.N)
	require.NoError(t, tensors[2].Download(ctx, got))
	for i, x := range got {
		value := values[i/p.N]
		want := p.Out.Round(float32(p.Scale()) * value)
		if value != value {
			require.True(t, math.IsNaN(float64(x)), "%g, column %d: %g", value, i%p.N, x)
			continue
		}
		require.Equal(t, math.Float32bits(want), math.Float32bits(x), "%g, column %d: %g, want %g", value, i%p.N, x, want)
	}
}
