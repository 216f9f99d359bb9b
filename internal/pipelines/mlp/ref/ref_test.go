package ref_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/diff/fd"

	"github.com/flashvk/flashvk/dtype"
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

// TestGradients compares with finite differences of sum(y * dy).
func TestGradients(t *testing.T) {
	for _, heads := range []int{0, 2} {
		p := mlp.Problem{Tokens: 3, Heads: heads, In: 2, Hidden: 5, Out: 4}
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
}

// TestPreOfAnother takes pre of another x for that of x: where W1 is the identity, gradients by x and
// by W2 are those of the other x.
func TestPreOfAnother(t *testing.T) {
	p := mlp.Problem{Tokens: 3, In: 4, Hidden: 4, Out: 2}
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

// TestPre wants gradients from the pre that is given: the same of that of x, and of each head
// those of a pre of its own.
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

// TestParts wants the outputs of some tokens and of some hidden units to be those of all.
func TestParts(t *testing.T) {
	p := mlp.Problem{Tokens: 4, In: 3, Hidden: 5, Out: 2}
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

// TestPartsOfHeads wants the same with heads.
func TestPartsOfHeads(t *testing.T) {
	p := mlp.Problem{Tokens: 4, Heads: 2, In: 3, Hidden: 5, Out: 2}
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
	for _, heads := range []int{0, 3} {
		p := mlp.Problem{Tokens: 9, Heads: heads, In: 20, Hidden: 30, Out: 7, DType: dtype.Float16, Grad: dtype.Some(dtype.Float32)}
		in := inputs(p)
		want, plain := ref.Compute(in, p), ref.Plain(in, p)
		b := ref.NewBounds(want, plain, p)
		for _, x := range []struct {
			want, plain []float64
			bound       float64
		}{{want.Pre, plain.Pre, b.Pre}, {want.Hidden, plain.Hidden, b.Hidden}, {want.Y, plain.Y, b.Y}, {want.DX, plain.DX, b.DX}, {want.DW1, plain.DW1, b.DW1}, {want.DW2, plain.DW2, b.DW2}} {
			require.InDeltaSlice(t, x.want, x.plain, x.bound/2)
			require.NotEqual(t, x.want, x.plain)
			require.Less(t, x.bound, 0.5)
		}
	}
}
