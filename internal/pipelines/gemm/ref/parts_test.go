package ref_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
)

// halves returns the parts of x, which are 11 bits each (shaders/lib/f32x2.glsl).
func halves(x float64) (hi, lo float64) {
	round := func(v float64) float64 {
		if v == 0 {
			return 0
		}
		_, e := math.Frexp(v)
		return math.Ldexp(math.RoundToEven(math.Ldexp(v, 11-e)), e-11)
	}
	hi = round(x)
	return hi, round(x - hi)
}

// unitStep is how many products the model of a matrix unit adds to a sum at a time.
const unitStep = 8

// addInUnit returns sum + a[0]*b[0] + ... as NVIDIA's matrix units add: all addends are cut
// off at the 24th bit of the largest, and so is their sum (Fasi et al., Numerical behavior
// of NVIDIA tensor cores, 2021; newer units have one or two more bits on the way).
func addInUnit(sum float64, a, b []float64) float64 {
	for len(a) > 0 {
		n := min(unitStep, len(a))
		top := math.Abs(sum)
		for i := range n {
			top = max(top, math.Abs(a[i]*b[i]))
		}
		_, e := math.Frexp(top)
		cut := func(v float64) float64 { return math.Ldexp(math.Trunc(math.Ldexp(v, 24-e)), e-24) }
		sum = cut(sum)
		for i := range n {
			sum += cut(a[i] * b[i])
		}
		if sum != 0 {
			_, e = math.Frexp(sum)
			sum = cut(sum)
		}
		a, b = a[n:], b[n:]
	}
	return sum
}

// partsModel computes A * B^T in parts. Sums in a matrix unit end after flush columns.
func partsModel(in ref.Inputs, p problem.Problem, flush int) []float64 {
	split := func(x []float64) (hi, lo []float64) {
		hi, lo = make([]float64, len(x)), make([]float64, len(x))
		for i, v := range x {
			hi[i], lo[i] = halves(v)
		}
		return hi, lo
	}
	aHi, aLo := split(in.A)
	bHi, bLo := split(in.B)
	out := make([]float64, p.M*p.N)
	for i := range out {
		a, b := i/p.N*p.K, i%p.N*p.K
		sum := float32(0)
		for k := 0; k < p.K; k += flush {
			n := min(flush, p.K-k)
			small := addInUnit(0, aLo[a+k:][:n], bHi[b+k:][:n])
			small = addInUnit(small, aHi[a+k:][:n], bLo[b+k:][:n])
			sum += float32(addInUnit(0, aHi[a+k:][:n], bHi[b+k:][:n]))
			sum = float32(float64(sum) + small)
		}
		out[i] = float64(sum)
	}
	return out
}

// TestParts wants what path coopmat does with float32 operands, whose sums leave the matrix
// unit after 8 or 16 columns, within the bound for all kernels; and wants sums that stay in
// the unit to break it, for that is why they leave.
func TestParts(t *testing.T) {
	for _, x := range []struct {
		name string
		draw func(rng *rand.Rand) float64
	}{
		{"normal", func(rng *rand.Rand) float64 { return rng.NormFloat64() }},
		{"positive", func(rng *rand.Rand) float64 { return rng.Float64() }},
	} {
		t.Run(x.name, func(t *testing.T) {
			for _, k := range []int{1, 16, 100, 3000} {
				p := problem.Problem{M: 12, N: 12, K: k, TransB: true, DType: dtype.Float32, Out: dtype.Float32}
				rng := rand.New(rand.NewPCG(7, uint64(k)))
				random := func(n int) []float64 {
					v := make([]float64, n)
					for i := range v {
						v[i] = float64(float32(x.draw(rng)))
					}
					return v
				}
				in := ref.Inputs{A: random(p.M * k), B: random(p.N * k)}
				want, plain := ref.Multiply(in, p), ref.Plain(in, p)
				bound := ref.NewBounds(want, plain, in, p).C
				worst := func(flush int) (off float64) {
					for i, got := range partsModel(in, p, flush) {
						off = max(off, math.Abs(got-want.C[i]))
					}
					return off / bound
				}
				t.Logf("k=%d: of the bound %.2g with 8 columns, %.2g with 16, %.2g with 64, %.2g with 256, %.2g with all", k, worst(8), worst(16), worst(64), worst(256), worst(k))
				require.Less(t, worst(8), 1.0)
				require.Less(t, worst(16), 1.0)
				if x.name == "positive" && k >= 100 {
					require.Greater(t, worst(k), 1.0)
				}
			}
		})
	}
}
