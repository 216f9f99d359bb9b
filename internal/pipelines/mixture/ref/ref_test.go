package ref_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/flashvk/flashvk/internal/pipelines/mixture/ref"
	"github.com/flashvk/flashvk/pipelines/mixture"
)

func inputs(p mixture.Problem) ref.Inputs {
	rng := rand.New(rand.NewPCG(3, 4))
	random := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = float64(p.DType.Round(float32(rng.NormFloat64() / 2)))
		}
		return x
	}
	return ref.Inputs{X: random(p.Tokens * p.In), W1: random(p.Heads * p.In * p.Hidden), W2: random(p.Heads * p.Hidden * 3), Y: random(p.Tokens)}
}

// TestForward compares with sums and densities written out.
func TestForward(t *testing.T) {
	p := mixture.Problem{Tokens: 3, Heads: 2, In: 4, Hidden: 5}
	in := inputs(p)
	logP, loss := ref.Forward(in, p)
	mean := 0.0
	for i := range p.Tokens {
		weights, prob := 0.0, 0.0
		for k := range p.Heads {
			var out [3]float64
			for h := range p.Hidden {
				pre := 0.0
				for c := range p.In {
					pre += in.X[i*p.In+c] * in.W1[(k*p.In+c)*p.Hidden+h]
				}
				for o := range out {
					out[o] += pre / (1 + math.Exp(-pre)) * in.W2[(k*p.Hidden+h)*3+o]
				}
			}
			weights += math.Exp(out[0])
			prob += math.Exp(out[0]) * distuv.Normal{Mu: out[1], Sigma: math.Exp(out[2])}.Prob(in.Y[i])
		}
		require.InDelta(t, math.Log(prob/weights), logP[i], 1e-12)
		mean += logP[i] / 3
	}
	require.InDelta(t, -mean, loss, 1e-12)
}

// TestTokens wants the same outputs from some tokens as from all.
func TestTokens(t *testing.T) {
	p := mixture.Problem{Tokens: 5, Heads: 2, In: 3, Hidden: 4}
	in := inputs(p)
	logP, _ := ref.Forward(in, p)
	all := ref.Backward(in, 2, p)
	part, some, dloss := ref.Tokens([]int{1, 4}, in, 2, p)
	got, _ := ref.Forward(some, part)
	require.Equal(t, []float64{logP[1], logP[4]}, got)
	require.InDeltaSlice(t, append(append([]float64(nil), all.DX[3:6]...), all.DX[12:15]...), ref.Backward(some, dloss, part).DX, 1e-14)
}
