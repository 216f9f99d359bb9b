package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/flashvk/flashvk/pipelines/gmm"
)

func random(p gmm.Problem) Inputs {
	rng := rand.New(rand.NewPCG(5, uint64(p.Components)))
	draw := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		return x
	}
	n := p.Tokens * p.Components
	return Inputs{draw(n), draw(n), draw(n), draw(p.Tokens)}
}

// TestForward compares with gonum's normal distribution and plain sums of
// probabilities, and with one component in closed form.
func TestForward(t *testing.T) {
	p := gmm.Problem{Tokens: 7, Components: 4}
	in := random(p)
	logP, loss := Forward(in, p)
	mean := 0.0
	for token := range p.Tokens {
		weights, prob := 0.0, 0.0
		for k := range p.Components {
			weights += math.Exp(in.Logit[token*4+k])
		}
		for k := range p.Components {
			i := token*4 + k
			prob += math.Exp(in.Logit[i]) / weights * distuv.Normal{Mu: in.Mu[i], Sigma: math.Exp(in.LogSigma[i])}.Prob(in.Y[token])
		}
		require.InDelta(t, math.Log(prob), logP[token], 1e-12)
		mean += logP[token] / 7
	}
	require.InDelta(t, -mean, loss, 1e-12)

	one := Inputs{Logit: []float64{1e4}, Mu: []float64{3}, LogSigma: []float64{math.Log(2)}, Y: []float64{7}}
	logP, _ = Forward(one, gmm.Problem{Tokens: 1, Components: 1})
	require.InDelta(t, -2-math.Log(2)-math.Log(2*math.Pi)/2, logP[0], 1e-14)
}
