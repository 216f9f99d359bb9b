package ref_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	gemm "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/ref"
	"github.com/flashvk/flashvk/pipelines/mlp"
)

func inputs(p mlp.Problem) ref.Inputs {
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(p.DType.Round(float32(rng.NormFloat64())))
		}
		return x
	}
	heads := max(p.Heads, 1)
	return ref.Inputs{
		X: random(p.Tokens * p.In), W1: random(heads * p.In * p.Hidden),
		W2: random(heads * p.Hidden * p.Out), DY: random(p.Tokens * heads * p.Out),
	}
}

// TestForward compares with sums written out.
func TestForward(t *testing.T) {
	for _, heads := range []int{0, 3} {
		p := mlp.Problem{Tokens: 2, Heads: heads, In: 4, Hidden: 5, Out: 2}
		in, n := inputs(p), max(heads, 1)
		out := ref.Compute(in, p)
		require.Nil(t, ref.Compute(ref.Inputs{X: in.X, W1: in.W1, W2: in.W2}, p).DX)
		for i := range p.Tokens {
			for k := range n {
				for j := range p.Out {
					y := 0.0
					for h := range p.Hidden {
						pre := 0.0
						for c := range p.In {
							pre += in.X[i*p.In+c] * in.W1[(k*p.In+c)*p.Hidden+h]
						}
						require.InDelta(t, pre, out.Pre[(i*n+k)*p.Hidden+h], 1e-12)
						require.InDelta(t, gemm.SiLU(pre), out.Hidden[(i*n+k)*p.Hidden+h], 1e-12)
						y += gemm.SiLU(pre) * in.W2[(k*p.Hidden+h)*p.Out+j]
					}
					require.InDelta(t, y, out.Y[(i*n+k)*p.Out+j], 1e-12)
				}
			}
		}
	}
}

// TestPre wants gradients from the pre that is given: the same gradients where that pre is the
// product of x, and gradients of one token and head from a pre that differs there.
func TestPre(t *testing.T) {
	p := mlp.Problem{Tokens: 3, Heads: 2, In: 2, Hidden: 5, Out: 4}
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

// TestParts wants the same outputs from some tokens and from some hidden units as from all.
func TestParts(t *testing.T) {
	for _, heads := range []int{0, 2} {
		p := mlp.Problem{Tokens: 4, Heads: heads, In: 3, Hidden: 5, Out: 2}
		in, n := inputs(p), max(heads, 1)
		for i := range p.Tokens * n * p.Hidden { // any
			in.Pre = append(in.Pre, float64(i%17)/8-1)
		}
		all := ref.Compute(in, p)
		rows := func(x []float64, columns int, of ...int) (list []float64) {
			for _, r := range of {
				list = append(list, x[r*columns:(r+1)*columns]...)
			}
			return list
		}
		part, some := ref.Tokens([]int{1, 3}, in, p)
		out := ref.Compute(some, part)
		require.InDeltaSlice(t, rows(all.Y, 2*n, 1, 3), out.Y, 1e-12)
		require.InDeltaSlice(t, rows(all.DX, 3, 1, 3), out.DX, 1e-12)
		part, some = ref.Units([]int{4}, in, p)
		out = ref.Compute(some, part)
		require.InDeltaSlice(t, rows(all.DW1, 1, []int{4, 9, 14, 19, 24, 29}[:3*n]...), out.DW1, 1e-12)
		require.InDeltaSlice(t, rows(all.DW2, 2, []int{4, 9}[:n]...), out.DW2, 1e-12)
	}
}
