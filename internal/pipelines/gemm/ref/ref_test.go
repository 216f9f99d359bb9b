package ref_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/diff/fd"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/problem"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
)

// TestHand compares with numbers worked out by hand: each transpose, the second product of a batch, the
// epilogue of an empty sum, and products without rows or columns, which are nothing.
func TestHand(t *testing.T) {
	// op(A) = 1 2 3   op(B) = 1 0   op(A)*op(B) = 7 5
	//         4 5 6           0 1                16 11
	//                         2 1
	a, aT := []float64{1, 2, 3, 4, 5, 6}, []float64{1, 4, 2, 5, 3, 6}
	b, bT := []float64{1, 0, 0, 1, 2, 1}, []float64{1, 0, 2, 0, 1, 1}
	c, r := []float64{10, 20, 30, 40}, []float64{1, 2, 3, 4}
	for _, x := range []struct {
		p    problem.Problem
		in   ref.Inputs
		want []float64
	}{
		{problem.Problem{M: 2, N: 2, K: 3}, ref.Inputs{A: a, B: b}, []float64{7, 5, 16, 11}},
		{problem.Problem{M: 2, N: 2, K: 3, TransA: true}, ref.Inputs{A: aT, B: b}, []float64{7, 5, 16, 11}},
		{problem.Problem{M: 2, N: 2, K: 3, TransB: true}, ref.Inputs{A: a, B: bT}, []float64{7, 5, 16, 11}},
		{problem.Problem{M: 2, N: 2, K: 3, TransA: true, TransB: true}, ref.Inputs{A: aT, B: bT}, []float64{7, 5, 16, 11}},
		{problem.Problem{M: 2, N: 2, K: 3, Alpha: 2, Beta: 0.5, Residual: true}, ref.Inputs{A: a, B: b, C: c, R: r}, []float64{20, 22, 50, 46}},
		{problem.Problem{Batch: 2, M: 1, N: 1, K: 2}, ref.Inputs{A: []float64{1, 2, 3, 4}, B: []float64{5, 6, 7, 8}}, []float64{17, 53}},
		{problem.Problem{M: 1, N: 2, Beta: 0.5, Residual: true}, ref.Inputs{C: []float64{2, 4}, R: []float64{10, 20}}, []float64{11, 22}},
		{problem.Problem{N: 2, K: 3}, ref.Inputs{B: b}, []float64{}},
		{problem.Problem{M: 2, K: 3}, ref.Inputs{A: a}, []float64{}},
	} {
		require.Equal(t, x.want, ref.Multiply(x.in, x.p).C, x.p)
		require.Equal(t, x.want, ref.Plain(x.in, x.p).C, x.p)
	}
}

// TestRows wants the same rows of C from some rows of a problem as from all rows.
func TestRows(t *testing.T) {
	p := problem.Problem{Batch: 2, M: 3, N: 2, K: 2, TransA: true, Residual: true}
	in := ref.Inputs{A: []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, B: []float64{1, 2, 3, 4, 5, 6, 7, 8}, R: []float64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}}
	all := ref.Multiply(in, p).C
	part, some := ref.Rows([]int{0, 2}, in, p)
	require.Equal(t, []float64{all[0], all[1], all[4], all[5], all[6], all[7], all[10], all[11]}, ref.Multiply(some, part).C)
}

// TestActivations wants each activation to be made of the others: X is the argument of SiLU, and
// TimesDSiLU the gradient at it, which finite differences give, too.
func TestActivations(t *testing.T) {
	for _, v := range []float64{-30, -3, -1.2784645, -0.5, 0, 0.5, 3, 30} {
		require.InDelta(t, fd.Derivative(ref.SiLU, v, &fd.Settings{Formula: fd.Central}), ref.DSiLU(v), 1e-8, v)
	}
	require.InDelta(t, 1/(1+math.Exp(-1)), ref.SiLU(1), 1e-15)
	rng := rand.New(rand.NewPCG(1, 2))
	random := func(n int) []float64 { return guard.Random(rng, dtype.Float32, n, 1) }
	p, in := problem.Problem{M: 3, N: 4, K: 5}, ref.Inputs{A: random(15), B: random(20), X: random(12)}
	v := ref.Multiply(in, p).C
	p.Activation = problem.SiLUKeep
	silu := ref.Multiply(in, p)
	require.Equal(t, v, silu.X)
	p.Activation = problem.TimesDSiLUKeep
	d := ref.Multiply(in, p)
	for i := range v {
		require.Equal(t, ref.SiLU(v[i]), silu.C[i])
		require.Equal(t, v[i]*ref.DSiLU(in.X[i]), d.C[i])
		require.Equal(t, ref.SiLU(in.X[i]), d.S[i])
	}
}

// TestDSiLUBound: a quotient may be off by 2.5 units in the last place. Where s is near 1, that
// is many units of 1-s. (On an H200 a derivative at 8.4 was off by 15 roundoffs.)
func TestDSiLUBound(t *testing.T) {
	p := problem.Problem{M: 1, N: 1, K: 1, DType: dtype.Float16, Out: dtype.Float32, Activation: problem.TimesDSiLU}
	for _, x := range []float64{2, 4.5, 8.407876968383789, 15} {
		in := ref.Inputs{A: []float64{1}, B: []float64{1}, X: []float64{x}}
		s := 1/(1+math.Exp(-x)) - 2.5*0x1p-24
		off := math.Abs(s*(1+x*(1-s)) - ref.DSiLU(x))
		require.Less(t, off, ref.NewBounds(ref.Multiply(in, p), ref.Plain(in, p), in, p).C, x)
	}
}
