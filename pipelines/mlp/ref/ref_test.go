package ref_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/diff/fd"

	"github.com/flashvk/flashvk/dtype"
	gemm "github.com/flashvk/flashvk/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/pipelines/mlp/problem"
	"github.com/flashvk/flashvk/pipelines/mlp/ref"
)

func inputs(p problem.Problem) ref.Inputs {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		return x
	}
	return ref.Inputs{X: random(p.Tokens * p.In), W1: random(p.In * p.Hidden), W2: random(p.Hidden * p.Out), DY: random(p.Tokens * p.Out)}
}

// TestForward compares with sums written out.
func TestForward(t *testing.T) {
	p := problem.Problem{Tokens: 2, In: 3, Hidden: 4, Out: 5}
	in := inputs(p)
	out := ref.Compute(in, p)
	for i := range p.Tokens {
		for j := range p.Out {
			y := 0.0
			for h := range p.Hidden {
				pre := 0.0
				for k := range p.In {
					pre += in.X[i*p.In+k] * in.W1[k*p.Hidden+h]
				}
				require.InDelta(t, pre, out.Pre[i*p.Hidden+h], 1e-12)
				require.InDelta(t, gemm.SiLU(pre), out.Hidden[i*p.Hidden+h], 1e-12)
				y += gemm.SiLU(pre) * in.W2[h*p.Out+j]
			}
			require.InDelta(t, y, out.Y[i*p.Out+j], 1e-12)
		}
	}
}

// TestGradients compares with finite differences of sum(y * dy).
func TestGradients(t *testing.T) {
	p := problem.Problem{Tokens: 3, In: 2, Hidden: 5, Out: 4}
	in := inputs(p)
	out := ref.Compute(in, p)
	check := func(name string, x, got []float64) {
		loss := func(v []float64) float64 {
			old := append([]float64(nil), x...)
			copy(x, v)
			sum := 0.0
			for i, y := range ref.Compute(ref.Inputs{X: in.X, W1: in.W1, W2: in.W2}, p).Y {
				sum += y * in.DY[i]
			}
			copy(x, old)
			return sum
		}
		want := fd.Gradient(nil, loss, append([]float64(nil), x...), &fd.Settings{Formula: fd.Central})
		require.InDeltaSlice(t, want, got, 1e-7, name)
	}
	check("dx", in.X, out.DX)
	check("dw1", in.W1, out.DW1)
	check("dw2", in.W2, out.DW2)
}

// TestPre takes pre of another x for that of x: where W1 is the identity, gradients by x and
// by W2 are those of the other x.
func TestPre(t *testing.T) {
	p := problem.Problem{Tokens: 3, In: 4, Hidden: 4, Out: 2}
	in := inputs(p)
	in.W1 = make([]float64, p.In*p.Hidden)
	for i := range p.In {
		in.W1[i*p.Hidden+i] = 1
	}
	other := in
	other.X = make([]float64, len(in.X))
	for i, v := range in.X {
		other.X[i] = 0.5 - v*v
	}
	in.Pre = other.X
	want, got := ref.Compute(other, p), ref.Compute(in, p)
	require.InDeltaSlice(t, want.DX, got.DX, 1e-12)
	require.InDeltaSlice(t, want.DW2, got.DW2, 1e-12)
	for i := range p.In {
		for h := range p.Hidden {
			sum := 0.0
			for k := range p.Tokens {
				sum += in.X[k*p.In+i] * want.DX[k*p.In+h]
			}
			require.InDelta(t, sum, got.DW1[i*p.Hidden+h], 1e-12)
		}
	}
}

// TestParts wants the outputs of some tokens and of some hidden units to be those of all.
func TestParts(t *testing.T) {
	p := problem.Problem{Tokens: 4, In: 3, Hidden: 5, Out: 2}
	in := inputs(p)
	in.Pre = ref.Compute(inputs(p), p).Hidden // any
	all := ref.Compute(in, p)
	part, some := ref.Tokens([]int{1, 3}, in, p)
	out := ref.Compute(some, part)
	require.InDeltaSlice(t, append(append([]float64(nil), all.Y[2:4]...), all.Y[6:8]...), out.Y, 1e-12)
	require.InDeltaSlice(t, append(append([]float64(nil), all.DX[3:6]...), all.DX[9:12]...), out.DX, 1e-12)
	part, some = ref.Units([]int{4}, in, p)
	out = ref.Compute(some, part)
	require.InDeltaSlice(t, []float64{all.DW1[4], all.DW1[9], all.DW1[14]}, out.DW1, 1e-12)
	require.InDeltaSlice(t, all.DW2[8:10], out.DW2, 1e-12)
}

// TestBounds wants the plain program within half of its bounds, and the bounds to be
// small.
func TestBounds(t *testing.T) {
	p := problem.Problem{Tokens: 9, In: 20, Hidden: 30, Out: 7, DType: dtype.Float16, Grad: dtype.Float32}
	in := inputs(p)
	for _, x := range [][]float64{in.X, in.W1, in.W2, in.DY} {
		for i := range x {
			x[i] = float64(p.DType.Round(float32(x[i])))
		}
	}
	want, plain := ref.Compute(in, p), ref.Plain(in, p)
	b := ref.NewBounds(want, plain, p)
	for _, x := range []struct {
		want, plain []float64
		bound       float64
	}{{want.Pre, plain.Pre, b.Pre}, {want.Hidden, plain.Hidden, b.Hidden}, {want.Y, plain.Y, b.Y}, {want.DX, plain.DX, b.DX}, {want.DW1, plain.DW1, b.DW1}, {want.DW2, plain.DW2, b.DW2}} {
		require.InDeltaSlice(t, x.want, x.plain, x.bound/2)
		require.Less(t, x.bound, 0.3)
	}
}
