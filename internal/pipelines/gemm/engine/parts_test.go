package engine_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

// openParts opens a device that multiplies parts of float32.
func openParts(t *testing.T) *vk.Device {
	t.Helper()
	d := vktest.Open(t)
	p := engine.Problem{M: 1, N: 1, K: 1, DType: dtype.Float32, Out: dtype.Float32}
	vktest.Require(t, "coopmat", engine.Supports(d.Caps(), engine.CoopMat, p))
	return d
}

// multiplyParts returns C of contiguous A and B of float32.
func multiplyParts(t *testing.T, d *vk.Device, p engine.Problem, a, b []float64) []float64 {
	t.Helper()
	tensor := func(name string, shape []int, data []float64) *guard.View {
		return &guard.View{Name: name, DType: dtype.Float32, Shape: shape, Strides: []int{shape[1] * shape[2], shape[2], 1}, Data: data}
	}
	x, y := tensor("a", p.AShape(), a), tensor("b", p.BShape(), b)
	c := tensor("c", p.CShape(), make([]float64, p.Batches()*p.M*p.N))
	device := guard.Device{Device: d}
	require.NoError(t, device.Call(context.Background(), "parts", []*guard.View{c, x, y}, func(cmd *vk.Cmd, on guard.Views) error {
		return engine.Multiply(cmd, engine.Tensors{A: on[x], B: on[y], C: on[c]}, p, engine.Options{Impl: engine.CoopMat})
	}))
	return c.Data
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

// TestPartsMagnitudes runs products of float32 numbers that no float16 holds, and of
// numbers that differ by much in a row, column or sum.
func TestPartsMagnitudes(t *testing.T) {
	d := openParts(t)
	normal := func(scale float64) func(*rand.Rand, int, int) float64 {
		return func(rng *rand.Rand, _, _ int) float64 { return scale * rng.NormFloat64() }
	}
	decades := func(rng *rand.Rand, _, _ int) float64 { return rng.NormFloat64() * math.Pow(10, 8*rng.Float64()-4) }
	p := engine.Problem{M: 19, N: 21, K: 270, DType: dtype.Float32, Out: dtype.Float32}
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
			return map[bool]float64{true: 1e20, false: 0}[row*3%p.K == col]
		}, normal(1)},
		{"decades in a row", decades, normal(1)},
		{"decades in both", decades, decades},
		{"growing along k", func(rng *rand.Rand, _, col int) float64 {
			return rng.NormFloat64() * math.Pow(10, float64(col)/30)
		}, func(rng *rand.Rand, row, _ int) float64 { return rng.NormFloat64() * math.Pow(10, float64(row)/40) }},
		{"decades of rows", func(rng *rand.Rand, row, _ int) float64 {
			return rng.NormFloat64() * math.Pow(10, float64(row%7-3))
		}, normal(1)},
		{"cancellation", func(rng *rand.Rand, row, col int) float64 {
			return float64(1-col%2*2) * (1 + 1e-5*rng.NormFloat64())
		}, func(rng *rand.Rand, row, col int) float64 { return 3 + float64(col)/7 }},
		{"zero", func(*rand.Rand, int, int) float64 { return 0 }, normal(1)},
	} {
		t.Run(x.name, func(t *testing.T) {
			in := ref.Inputs{A: draw(p.M, p.K, x.a), B: draw(p.K, p.N, x.b)}
			want, plain := ref.Multiply(in, p), ref.Plain(in, p)
			bound := ref.NewBounds(want, plain, in, p).C
			worst := 0.0
			for i, got := range multiplyParts(t, d, p, in.A, in.B) {
				off := math.Abs(got - want.C[i])
				require.LessOrEqual(t, off, bound, "C[%d,%d] = %g, want %g", i/p.N, i%p.N, got, want.C[i])
				worst = max(worst, off)
			}
			t.Logf("off by %.3g of %.3g", worst, bound)
		})
	}
}

// TestPartsScale wants rows of A and columns of B that are multiplied by powers of two to
// give the same bits, multiplied by both: each has an exponent of its own.
func TestPartsScale(t *testing.T) {
	d := openParts(t)
	for _, trans := range []bool{false, true} {
		t.Run(fmt.Sprintf("trans=%v", trans), func(t *testing.T) {
			p := engine.Problem{M: 37, N: 35, K: 140, TransA: trans, TransB: trans, DType: dtype.Float32, Out: dtype.Float32}
			rowPower := func(row int) float64 { return math.Ldexp(1, row*41%161-80) }
			colPower := func(col int) float64 { return math.Ldexp(1, 30-col*29%61) }
			normal := func(rng *rand.Rand, _, _ int) float64 { return rng.NormFloat64() }
			shapeA, shapeB := p.AShape(), p.BShape()
			a, b := draw(shapeA[1], shapeA[2], normal), draw(shapeB[1], shapeB[2], normal)
			want := multiplyParts(t, d, p, a, b)
			for i := range a {
				row := map[bool]int{false: i / shapeA[2], true: i % shapeA[2]}[trans]
				a[i] *= rowPower(row)
			}
			for i := range b {
				col := map[bool]int{false: i % shapeB[2], true: i / shapeB[2]}[trans]
				b[i] *= colPower(col)
			}
			for i, got := range multiplyParts(t, d, p, a, b) {
				require.Equal(t, want[i]*rowPower(i/p.N)*colPower(i%p.N), got, "C[%d,%d]", i/p.N, i%p.N)
			}
		})
	}
}

// TestPartsRange wants the elements of a matrix, multiplied by ones and zeros, to come back:
// right to a bit down to 2^-27 of the largest of their row or column, and below to 2^-50 of
// that largest.
func TestPartsRange(t *testing.T) {
	d := openParts(t)
	const n = 40
	p := engine.Problem{M: n, N: n, K: n, DType: dtype.Float32, Out: dtype.Float32}
	one := draw(n, n, func(_ *rand.Rand, row, col int) float64 { return map[bool]float64{true: 1}[row == col] })
	x := draw(n, n, func(rng *rand.Rand, row, col int) float64 {
		return (1 + rng.Float64()) * math.Ldexp(1-2*float64(col%2), -row)
	})
	wide := draw(n, n, func(rng *rand.Rand, row, col int) float64 { return x[col*n+row] })
	for name, got := range map[string][]float64{
		"b": multiplyParts(t, d, p, one, x),
		"a": multiplyParts(t, d, p, wide, one),
	} {
		for i, v := range got {
			want, row := x[i], i/n
			if name == "a" {
				want, row = wide[i], i%n
			}
			off := max(math.Abs(want)*0x1p-23, 0x1p-49) // the largest is below 2
			require.InDelta(t, want, v, off, "%s: element %d of the row or column", name, row)
		}
	}
}

// TestPartsNotFinite wants an Inf or NaN in a row of A to make the row of C NaN, one in a
// column of B the column, and nothing else to change.
func TestPartsNotFinite(t *testing.T) {
	d := openParts(t)
	p := engine.Problem{M: 18, N: 20, K: 33, DType: dtype.Float32, Out: dtype.Float32}
	normal := func(rng *rand.Rand, _, _ int) float64 { return rng.NormFloat64() }
	a, b := draw(p.M, p.K, normal), draw(p.K, p.N, normal)
	want := multiplyParts(t, d, p, a, b)
	a[3*p.K+32], a[17*p.K] = math.Inf(1), math.NaN()
	b[5*p.N+19] = math.Inf(-1)
	for i, got := range multiplyParts(t, d, p, a, b) {
		row, col := i/p.N, i%p.N
		if row == 3 || row == 17 || col == 19 {
			require.True(t, math.IsNaN(got), "C[%d,%d] = %g", row, col, got)
		} else {
			require.Equal(t, want[i], got, "C[%d,%d]", row, col)
		}
	}
}
