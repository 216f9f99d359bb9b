package ref_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/diff/fd"

	"github.com/flashvk/flashvk/dtype"
	gemm "github.com/flashvk/flashvk/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/pipelines/grouped/problem"
	"github.com/flashvk/flashvk/pipelines/grouped/ref"
)

func inputs(p problem.Problem) ref.Inputs {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(p.DType.Round(float32(rng.NormFloat64())))
		}
		return x
	}
	return ref.Inputs{
		X: random(p.Tokens * p.In), W1: random(p.Heads * p.In * p.Hidden),
		W2: random(p.Heads * p.Hidden * p.Out), DY: random(p.Tokens * p.Heads * p.Out),
	}
}

// TestForward compares with sums written out.
func TestForward(t *testing.T) {
	p := problem.Problem{Tokens: 2, Heads: 3, In: 4, Hidden: 5, Out: 2}
	in := inputs(p)
	out := ref.Compute(in, p)
	require.Nil(t, ref.Compute(ref.Inputs{X: in.X, W1: in.W1, W2: in.W2}, p).DX)
	for i := range p.Tokens {
		for k := range p.Heads {
			for j := range p.Out {
				y := 0.0
				for h := range p.Hidden {
					pre := 0.0
					for c := range p.In {
						pre += in.X[i*p.In+c] * in.W1[(k*p.In+c)*p.Hidden+h]
					}
					require.InDelta(t, pre, out.Pre[(i*p.Heads+k)*p.Hidden+h], 1e-12)
					y += gemm.SiLU(pre) * in.W2[(k*p.Hidden+h)*p.Out+j]
				}
				require.InDelta(t, y, out.Y[(i*p.Heads+k)*p.Out+j], 1e-12)
			}
		}
	}
}

// TestGradients compares with finite differences of sum(y * dy).
func TestGradients(t *testing.T) {
	p := problem.Problem{Tokens: 3, Heads: 2, In: 2, Hidden: 5, Out: 4}
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

// TestPre wants gradients from the pre that is given: the same of that of x, and of each head
// those of a pre of its own.
func TestPre(t *testing.T) {
	p := problem.Problem{Tokens: 3, Heads: 2, In: 2, Hidden: 5, Out: 4}
	in := inputs(p)
	want := ref.Compute(in, p)
	in.Pre = append([]float64(nil), want.Pre...)
	require.Equal(t, want, ref.Compute(in, p))
	in.Pre[(1*p.Heads+1)*p.Hidden+3] += 1 // token 1, head 1
	got := ref.Compute(in, p)
	require.NotEqual(t, want.DW2, got.DW2)
	for i := range got.DW2 {
		if i/p.Out != 1*p.Hidden+3 {
			require.Equal(t, want.DW2[i], got.DW2[i])
		}
	}
	require.Equal(t, want.DX[:2], got.DX[:2])
	require.NotEqual(t, want.DX[2:4], got.DX[2:4])
	require.Equal(t, want.DX[4:], got.DX[4:])
}

// TestParts wants the outputs of some tokens and of some hidden units to be those of all.
func TestParts(t *testing.T) {
	p := problem.Problem{Tokens: 4, Heads: 2, In: 3, Hidden: 5, Out: 2}
	in := inputs(p)
	in.Pre = ref.Compute(ref.Inputs{X: in.W2[:p.Tokens*p.In], W1: in.W1, W2: in.W2}, p).Pre // any
	all := ref.Compute(in, p)
	part, some := ref.Tokens([]int{1, 3}, in, p)
	out := ref.Compute(some, part)
	require.InDeltaSlice(t, append(append([]float64(nil), all.Y[4:8]...), all.Y[12:16]...), out.Y, 1e-12)
	require.InDeltaSlice(t, append(append([]float64(nil), all.DX[3:6]...), all.DX[9:12]...), out.DX, 1e-12)
	part, some = ref.Units([]int{4}, in, p)
	out = ref.Compute(some, part)
	require.InDeltaSlice(t, []float64{all.DW1[4], all.DW1[9], all.DW1[14], all.DW1[19], all.DW1[24], all.DW1[29]}, out.DW1, 1e-12)
	require.InDeltaSlice(t, append(append([]float64(nil), all.DW2[8:10]...), all.DW2[18:20]...), out.DW2, 1e-12)
}

// TestBounds wants the plain program within half of its bounds, and the bounds to be
// small.
func TestBounds(t *testing.T) {
	p := problem.Problem{Tokens: 9, Heads: 3, In: 20, Hidden: 30, Out: 7, DType: dtype.Float16, Grad: dtype.Float32}
	in := inputs(p)
	want, plain := ref.Compute(in, p), ref.Plain(in, p)
	b := ref.NewBounds(want, plain, p)
	for _, x := range []struct {
		want, plain []float64
		bound       float64
	}{{want.Pre, plain.Pre, b.Pre}, {want.Y, plain.Y, b.Y}, {want.DX, plain.DX, b.DX}, {want.DW1, plain.DW1, b.DW1}, {want.DW2, plain.DW2, b.DW2}} {
		require.InDeltaSlice(t, x.want, x.plain, x.bound/2)
		require.NotEqual(t, x.want, x.plain)
		require.Less(t, x.bound, 0.5)
	}
}
