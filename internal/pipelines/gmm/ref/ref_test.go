package ref

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"gonum.org/v1/gonum/stat/distuv"

	"github.com/flashvk/flashvk/dtype"
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

// TestPlain says that the plain program is as far off as float32, or the format of
// the gradients, is, and no further.
func TestPlain(t *testing.T) {
	for _, format := range dtype.All() {
		p := gmm.Problem{Tokens: 50, Components: 10, DType: format, Grad: dtype.Some(format)}
		in := random(p)
		for _, x := range [][]float64{in.Logit, in.Mu, in.LogSigma, in.Y} {
			for i := range x {
				x[i] = float64(format.Round(float32(x[i])))
			}
		}
		logP, loss := Forward(in, p)
		plain, plainLoss := PlainForward(in, p)
		b := ForwardBounds(in, logP, plain, loss, plainLoss)
		require.Less(t, b.LogP, 1e-3)
		require.Less(t, b.Loss, 1e-4)
		want, rough := Backward(in, 1, p), PlainBackward(in, 1, p)
		g := BackwardBounds(in, want, rough, 1, p)
		require.Less(t, g.DLogit, 2*format.Eps()/50+5e-7)
		require.NotEqual(t, want, rough)
	}
}
