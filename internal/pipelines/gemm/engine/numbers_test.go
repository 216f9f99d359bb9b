package engine_test

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// checkValues runs a product of a and b, whose tensors a function changes, with the inputs and the
// values wanted of c.
func checkValues(t *testing.T, d *vk.Device, g *call.Gemm, a, b []float64, change func(a, b, c *guard.Tensor)) {
	t.Helper()
	k, record, err := call.Case(d.Caps(), g, kit.Forward, call.Values{"a": a, "b": b})
	vktest.Require(t, g.Impl, err)
	if change != nil {
		change(&k.Tensors[0], &k.Tensors[1], &k.Tensors[2])
	}
	k.Test(t, d, record)
}

// roundings are values of float16. Multiplied by 2^112, they tell the rounding of C to 16 bits from
// other roundings: halves of the last place of a bfloat16 above an even and an odd one, less and more
// than that, values that become infinite or just do not, and values that are not finite.
var roundings = []float32{
	0, 1, -1, 1.00390625, 1.01171875, -1.00390625, -1.01171875, 1.0029296875, 1.0048828125,
	65504, -65504, 65088, 65280, 0x1p-14, 0x1p-24, -0x1.8p-23, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
}

// scalarRoundings are roundings and values of float32: the NaNs whose bits are all ones, which
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

// TestRounding wants numbers of C rounded to nearest even, overflow to infinity, and NaN kept, in words,
// in pairs and alone: rows of A have one number that is not 0, and B is ones. Path scalar rounds one
// number at a time, the sums of its splits in words.
func TestRounding(t *testing.T) {
	half := randomNumbers(dtype.Float16, 999)
	for _, out := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
		for _, x := range []struct {
			config string
			p      engine.Problem
			values [][]float32
		}{
			{"coopmat s1x1 t1x8 k$1 packb g1", engine.Problem{N: 16, K: 1, Alpha: 0x1p112, DType: dtype.Float16}, [][]float32{roundings}},
			{"coopmat", engine.Problem{K: 1, Alpha: 0x1p112, DType: dtype.Float16}, [][]float32{roundings}},
			{"coopmat", engine.Problem{K: 1, Alpha: 0x1p-112, DType: dtype.Float16}, [][]float32{roundings}},
			{"coopmat", engine.Problem{K: 1, Alpha: 0.7, DType: dtype.Float16}, [][]float32{roundings, half}},
			{"scalar", engine.Problem{K: 1, Alpha: 0x1p112, DType: dtype.Float16}, [][]float32{roundings}},
			{"scalar", engine.Problem{K: 1, Alpha: 0.7, DType: dtype.Float16}, [][]float32{roundings, half}},
			{"scalar 16x32 t4x8 k8 g1 splits2", engine.Problem{K: 16}, [][]float32{scalarRoundings, randomNumbers(dtype.Float32, 999)}},
		} {
			for _, n := range []int{16, 13} {
				for _, values := range x.values {
					p := x.p
					if p.Out, p.M = out, len(values); p.N > n {
						continue
					}
					p.N = n
					t.Run(x.config+" "+p.String(), func(t *testing.T) { checkRounding(t, x.config, p, values) })
				}
			}
		}
	}
}

func checkRounding(t *testing.T, config string, p engine.Problem, values []float32) {
	d := vktest.Open(t)
	g := &call.Gemm{Problem: p}
	g.Impl, g.Config = on(d, config)
	a, b := make([]float64, p.M*p.K), slices.Repeat([]float64{1}, p.K*p.N)
	var want []float64
	for i, x := range values {
		a[i*p.K] = float64(x)
		want = append(want, slices.Repeat([]float64{float64(p.Out.Round(float32(p.Scale()) * x))}, p.N)...)
	}
	checkValues(t, d, g, a, b, func(_, _, c *guard.Tensor) { c.Want, c.Bound = want, 0 })
}

// draw returns rows x cols float32 numbers.
func draw(rows, cols int, f func(rng *rand.Rand, row, col int) float64) []float64 {
	rng := rand.New(rand.NewPCG(uint64(rows), uint64(cols)))
	x := make([]float64, rows*cols)
	for i := range x {
		x[i] = float64(float32(f(rng, i/cols, i%cols)))
	}
	return x
}

func normal(scale float64) func(*rand.Rand, int, int) float64 {
	return func(rng *rand.Rand, _, _ int) float64 { return scale * rng.NormFloat64() }
}

// TestF32x2Magnitudes runs products of float32 numbers that no float16 holds, and of numbers that differ
// by much in a row, column or sum, in parts of 16 bits.
func TestF32x2Magnitudes(t *testing.T) {
	d := vktest.Open(t)
	decades := func(rng *rand.Rand, _, _ int) float64 { return rng.NormFloat64() * math.Pow(10, 8*rng.Float64()-4) }
	g := &call.Gemm{Problem: engine.Problem{M: 19, N: 21, K: 270}, Impl: "coopmat"}
	for _, x := range []struct {
		name string
		a, b func(rng *rand.Rand, row, col int) float64
	}{
		{"1e30 and 1e-30", normal(1e30), normal(1e-30)},
		{"1e-37 and 1e36", func(rng *rand.Rand, row, col int) float64 {
			return float64(1-(row+col)%3) * (2 + rng.Float64()) * 1e-38 // no subnormals
		}, normal(1e36)},
		{"products of 1e36", normal(1e18), normal(1e18)},
		{"products of 1e-34", normal(1e-17), normal(1e-17)},
		{"1e38 and 1", func(rng *rand.Rand, _, _ int) float64 { return 2e38 * rng.Float64() }, normal(1e-3)},
		{"one in a row", func(rng *rand.Rand, row, col int) float64 {
			return map[bool]float64{true: 1e20, false: 0}[row*3%g.K == col]
		}, normal(1)},
		{"decades in a row", decades, normal(1)},
		{"decades in both", decades, decades},
		{
			"growing along k", func(rng *rand.Rand, _, col int) float64 { return rng.NormFloat64() * math.Pow(10, float64(col)/30) },
			func(rng *rand.Rand, row, _ int) float64 { return rng.NormFloat64() * math.Pow(10, float64(row)/40) },
		},
		{"decades of rows", func(rng *rand.Rand, row, _ int) float64 { return rng.NormFloat64() * math.Pow(10, float64(row%7-3)) }, normal(1)},
		{
			"cancellation", func(rng *rand.Rand, row, col int) float64 { return float64(1-col%2*2) * (1 + 1e-5*rng.NormFloat64()) },
			func(rng *rand.Rand, row, col int) float64 { return 3 + float64(col)/7 },
		},
		{"zero", normal(0), normal(1)},
	} {
		t.Run(x.name, func(t *testing.T) { checkValues(t, d, g, draw(g.M, g.K, x.a), draw(g.K, g.N, x.b), nil) })
	}
}

// TestF32x2Scale wants rows of A and columns of B that are multiplied by powers of two to be right within
// a bound multiplied by both: each has an exponent of its own.
func TestF32x2Scale(t *testing.T) {
	d := vktest.Open(t)
	for _, trans := range []bool{false, true} {
		g := &call.Gemm{Problem: engine.Problem{M: 37, N: 35, K: 140, TransA: trans, TransB: trans}, Impl: "coopmat"}
		row := func(i int) float64 { return math.Ldexp(1, i*41%161-80) }
		col := func(i int) float64 { return math.Ldexp(1, 30-i*29%61) }
		a, b := draw(g.AShape()[1], g.AShape()[2], normal(1)), draw(g.BShape()[1], g.BShape()[2], normal(1))
		checkValues(t, d, g, a, b, func(a, b, c *guard.Tensor) {
			for i := range a.Values {
				at := i / g.K
				if trans {
					at = i % g.M
				}
				a.Values[i] *= row(at)
			}
			for i := range b.Values {
				at := i % g.N
				if trans {
					at = i / g.K
				}
				b.Values[i] *= col(at)
			}
			for i := range c.Want {
				by := row(i/g.N) * col(i%g.N)
				c.Want[i], c.Bounds = c.Want[i]*by, append(c.Bounds, c.Bound*by)
			}
		})
	}
}

// TestF32x2Range wants the elements of a matrix, multiplied by ones and zeros, to come back: right to a
// bit down to 2^-27 of the largest of their row or column, and below to 2^-50 of that largest.
func TestF32x2Range(t *testing.T) {
	d := vktest.Open(t)
	const n = 40
	g := &call.Gemm{Problem: engine.Problem{M: n, N: n, K: n}, Impl: "coopmat"}
	one := draw(n, n, func(_ *rand.Rand, row, col int) float64 { return map[bool]float64{true: 1}[row == col] })
	x := draw(n, n, func(rng *rand.Rand, row, col int) float64 {
		return (1 + rng.Float64()) * math.Ldexp(1-2*float64(col%2), -row)
	})
	exact := func(_, _, c *guard.Tensor) {
		for _, want := range c.Want {
			c.Bounds = append(c.Bounds, max(math.Abs(want)*0x1p-23, 0x1p-49)) // the largest is below 2
		}
	}
	checkValues(t, d, g, one, x, exact)
	checkValues(t, d, g, call.Turn(x, n, n), one, exact)
}

// TestF32x2NotFinite wants an Inf or NaN in a row of A to make the row of C NaN, one in a column of B
// the column, and nothing else to change.
func TestF32x2NotFinite(t *testing.T) {
	d := vktest.Open(t)
	g := &call.Gemm{Problem: engine.Problem{M: 18, N: 20, K: 33}, Impl: "coopmat"}
	checkValues(t, d, g, draw(g.M, g.K, normal(1)), draw(g.K, g.N, normal(1)), func(a, b, c *guard.Tensor) {
		a.Values[3*g.K+32], a.Values[17*g.K], b.Values[5*g.N+19] = math.Inf(1), math.NaN(), math.Inf(-1)
		for i := range c.Want {
			if row, col := i/g.N, i%g.N; row == 3 || row == 17 || col == 19 {
				c.Want[i] = math.NaN()
			}
		}
	})
}

// TestPad copies matrices of odd sizes into one tensor with rows wide enough for all matrices. The
// test wants zeros after each matrix, and errors that name the tensor that does not fit.
func TestPad(t *testing.T) {
	d := vktest.Open(t)
	for _, format := range dtype.All() {
		const batch, rows, cols, stride = 3, 5, 11, 16 // stride: with the zeros, of all formats
		size := 16 / format.Size()
		zeros := (cols+size-1)/size*size - cols
		var src []float64
		before := slices.Repeat([]float64{-1}, rows*batch*stride)
		want := slices.Clone(before)
		for b := range batch {
			for r := range rows {
				line := want[(r*batch+b)*stride:]
				clear(line[:cols+zeros])
				for c := range cols {
					line[c] = float64(len(src) + 1)
					src = append(src, line[c])
				}
			}
		}
		for odd, gap := range []int{0, 8, 3} {
			from, to := &guard.Place{Offset: 9 * gap, RowGap: gap}, &guard.Place{Offset: 9 * gap}
			c := guard.Case{Name: "pad", Tensors: []guard.Tensor{
				{Name: "src", DType: format, Shape: []int{batch, rows, cols}, Values: src, Place: from},
				{Name: "dst", DType: format, Shape: []int{rows, batch * stride}, Values: before, Want: want, Place: to},
			}}
			_, err := c.Check(d, func(c *vk.Cmd, t map[string]vk.Tensor) error {
				dst := t["dst"]
				dst.Shape, dst.Strides = []int{batch, rows, cols}, []int{stride, batch * stride, 1}
				return engine.Pad(c, dst, t["src"])
			})
			if odd == 2 {
				require.ErrorContains(t, err, "not multiples of 16 bytes")
			} else {
				require.NoError(t, err)
			}
		}
	}
	src, dst := vktest.Tensor(t, d, dtype.Float16, 2, 3, 5), vktest.Tensor(t, d, dtype.Float16, 2, 3, 8)
	short := vktest.Tensor(t, d, dtype.Float16, 46) // room for the last row, but not for its zeros
	short.Shape, short.Strides = src.Shape, []int{24, 8, 1}
	for want, x := range map[string][2]vk.Tensor{
		"gemm: dst has shape [2 3 8]":                                    {dst, src},
		"gemm: src has shape [6 5], want three axes":                     {dst, vk.View(src.Buffer, dtype.Float16, 6, 5)},
		"gemm: dst with its zeros ends at byte 96 of a buffer of 92":     {short, src},
		"gemm: dst has offset 0 and strides [15 5 1]: not multiples of ": {src, vk.View(dst.Buffer, dtype.Float16, 2, 3, 5)},
	} {
		refused(t, d, want, func(c *vk.Cmd) error { return engine.Pad(c, x[0], x[1]) })
	}
}
