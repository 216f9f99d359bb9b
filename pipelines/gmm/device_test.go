package gmm_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// newCall returns a call with all outputs.
func newCall(p gmm.Problem) *call.GMM { return &call.GMM{Problem: p, LogP: true, Loss: true} }

// TestDrawn checks calls of all three functions, and both passes of mixtures with logits of 10000 and with
// more components than a batch of loads.
func TestDrawn(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	require.NoError(t, call.TestDrawn(t, d, "gmm", 40, call.Space{Thorough: vktest.Thorough(d)}, nil))
	for i, components := range []int{1, 16, 17, 1000} {
		c := newCall(gmm.Problem{Tokens: 64 + i, Components: components, DType: dtype.All()[i%3]})
		c.Magnitude, c.DLoss, c.Layout = 1e4, -2.5, string("pao"[i%3])
		call.Test(t, d, c, nil, kit.Forward, kit.Backward)
	}
}

// TestExtremes has every combination of extreme logits, deviations and distances in two
// components. The test compares each result relative to itself: a bound for the largest says
// nothing of the others. A result that float32 cannot hold must be the infinity that it rounds to.
func TestExtremes(t *testing.T) {
	d := vktest.Open(t)
	var in ref.Inputs
	logits, sigmas, means := []float64{-1e4, 0, 1e4}, []float64{-200, -100, -40, 0, 40, 80, 200}, []float64{-3e38, -1e19, -5, 0, 1e-30, 7, 1e10, 3e38}
	for _, a := range logits {
		for _, b := range logits {
			for _, sa := range sigmas {
				for _, sb := range sigmas {
					for i, ma := range means {
						in.Logit = append(in.Logit, a, b)
						in.LogSigma = append(in.LogSigma, sa, sb)
						in.Mu = append(in.Mu, float64(float32(ma)), float64(float32(means[(3*i+int(sa))%len(means)&7])))
						in.Y = append(in.Y, []float64{0, 5, 1e30}[i%3])
					}
				}
			}
		}
	}
	for i := range in.Y {
		in.Y[i] = float64(float32(in.Y[i]))
	}
	p := gmm.Problem{Tokens: len(in.Y), Components: 2, DType: dtype.Float32}
	got, gotLoss, grad := compute(t, d, p, in)
	logP, loss := ref.Forward(in, p)
	want := ref.Backward(in, float64(p.Tokens), p)
	infinite := 0
	for i, w := range logP {
		infinite += compare(t, fmt.Sprintf("log_p[%d]", i), float64(got[i]), w, 1e-5)
	}
	require.Greater(t, infinite, 100)
	require.Equal(t, math.Inf(1), float64(float32(loss)))
	require.Equal(t, math.Inf(1), float64(gotLoss))
	infinite = 0
	for i := range in.Logit {
		at := fmt.Sprintf("[%d]: logits %v, mu %v, log sigma %v, y %g", i, in.Logit[i&^1:i&^1+2], in.Mu[i&^1:i&^1+2], in.LogSigma[i&^1:i&^1+2], in.Y[i/2])
		compare(t, "dlogit"+at, float64(grad[0][i]), want.Logit[i], 1e-3)
		infinite += compare(t, "dmu"+at, float64(grad[1][i]), want.Mu[i], 1e-3)
		infinite += compare(t, "dlog_sigma"+at, float64(grad[2][i]), want.LogSigma[i], 1e-3)
	}
	require.Greater(t, infinite, 100)
}

// compare wants got within tolerance of want, relative to want or 1. It returns 1 where float32
// has an infinity, or nearly.
func compare(t *testing.T, what string, got, want, tolerance float64) int {
	t.Helper()
	rounded := float64(float32(want))
	if math.IsInf(rounded, 0) || math.IsInf(got, 0) || math.Abs(want) > 3e38 {
		if math.Abs(want) < 3e38 || math.Abs(got) < 3e38 || math.Signbit(got) != math.Signbit(want) {
			t.Errorf("%s is %g, want %g", what, got, want)
		}
		return 1
	}
	if !(math.Abs(got-want) <= tolerance*(1+math.Abs(want))) {
		t.Errorf("%s is %g, want %g", what, got, want)
	}
	return 0
}

// compute returns log_p, the loss, and the gradients of -sum(log_p).
func compute(t *testing.T, d *vk.Device, p gmm.Problem, in ref.Inputs) (logP []float32, loss float32, grad [3][]float32) {
	ctx := context.Background()
	tensor := func(values []float64, shape ...int) vk.Tensor {
		return vktest.Values(t, d, dtype.Float32, values, shape...)
	}
	mixtures := func(x []float64) vk.Tensor { return tensor(x, p.Tokens, p.Components) }
	x := gmm.Tensors{
		Logit: mixtures(in.Logit), Mu: mixtures(in.Mu), LogSigma: mixtures(in.LogSigma),
		Y: tensor(in.Y, p.Tokens), LogP: tensor(nil, p.Tokens), Loss: tensor(nil, 1),
	}
	g := gmm.Gradients{DLoss: tensor([]float64{float64(p.Tokens)}, 1), DLogit: mixtures(nil), DMu: mixtures(nil), DLogSigma: mixtures(nil)}
	c, err := d.NewCmd("extremes")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, gmm.Forward(c, x, p, gmm.Options{}))
	require.NoError(t, gmm.Backward(c, x, g, p, gmm.Options{}))
	require.NoError(t, c.Submit(ctx))
	download := func(x vk.Tensor) []float32 {
		values := make([]float32, x.NumElements())
		require.NoError(t, x.Download(ctx, values))
		return values
	}
	return download(x.LogP), download(x.Loss)[0], [3][]float32{download(g.DLogit), download(g.DMu), download(g.DLogSigma)}
}

// TestAgain submits a Cmd again and again: the last workgroup must leave the count as it was.
// Another workgroup would take itself for the last otherwise, and add a sum of the submission
// before.
func TestAgain(t *testing.T) {
	d := vktest.Open(t)
	ctx := context.Background()
	p := gmm.Problem{Tokens: 300, Components: 2}
	tensor := func(shape ...int) vk.Tensor { return vktest.Values[float32](t, d, dtype.Float32, nil, shape...) }
	x := gmm.Tensors{Y: tensor(p.Tokens), Loss: tensor(1)}
	x.Logit, x.Mu, x.LogSigma = gmm.Interleaved(tensor(p.Tokens, p.Components, 3))
	c, err := d.NewCmd("again")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	require.NoError(t, gmm.Forward(c, x, p, gmm.Options{}))
	for run := range 4 {
		y, got := make([]float32, p.Tokens), make([]float32, 1)
		for i := range y {
			y[i] = float32(2 * run)
		}
		require.NoError(t, x.Y.Upload(ctx, y))
		require.NoError(t, c.Submit(ctx))
		require.NoError(t, x.Loss.Download(ctx, got))
		require.InDelta(t, math.Log(2*math.Pi)/2+float64(2*run*run), got[0], 1e-4)
	}
}

// TestMerge merges groups of one component each. Some are far from y, some likelier than others
// by 1e4.
func TestMerge(t *testing.T) {
	d := vktest.Open(t)
	for i, size := range [][2]int{{1, 1}, {70, 2}, {130, 10}} {
		c := newCall(gmm.Problem{Tokens: size[0], Components: size[1]})
		c.Call, c.Magnitude, c.Layout = call.GMMMerge, []float64{1, 1e4}[i%2], string("pa"[i%2])
		x := call.Inputs(c)
		for t := 0; t < c.Tokens; t += 3 {
			x["y"][t] = float64(float32(x["y"][t] * 1e25)) // z²/2 is infinite
		}
		c.Adjust(x)
		k, record, err := call.Case(d.Caps(), c, kit.Forward, x)
		require.NoError(t, err)
		for _, out := range k.Tensors {
			for j, w := range out.Want { // some are beyond float32
				out.Want[j] = float64(float32(w))
			}
		}
		k.Test(t, d, record)
	}
}

// TestMergeErrors has the message of states that do not fit.
func TestMergeErrors(t *testing.T) {
	d := vktest.Open(t)
	c, err := d.NewCmd("errors")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	x := vktest.Tensor(t, d, dtype.Float32, 2, 4, gmm.StateSize)
	p, none := gmm.Problem{Tokens: 4, Components: 1}, gmm.Tensors{}
	require.NoError(t, gmm.Merge(c, x, none, p, gmm.Options{}))
	require.EqualError(t, gmm.Merge(c, vk.Tensor{}, none, p, gmm.Options{}), "gmm: states has shape [], want [groups 4 8]")
	require.EqualError(t, gmm.Merge(c, x, none, gmm.Problem{Tokens: 5, Components: 1}, gmm.Options{}), "gmm: states has shape [2 4 8] and strides [32 8 1], want shape [2 5 8]")
	odd := x
	odd.Shape, odd.Offset = []int{1, 4, 8}, 2
	require.EqualError(t, gmm.Merge(c, odd, none, p, gmm.Options{}), "gmm: states has offset 2 and strides [32 8 1]: not multiples of 4 elements")
}

// TestSaturate has gradients that float16 cannot hold, and wants its largest number instead.
func TestSaturate(t *testing.T) {
	d := vktest.Open(t)
	g := newCall(gmm.Problem{Tokens: 2, Components: 1, Grad: dtype.Some(dtype.Float16)})
	g.Interleaved = true
	for _, most := range []float64{65504, math.Inf(1)} {
		c := guard.Case{Tensors: []guard.Tensor{
			{Name: "p", Shape: []int{2, 1, 3}, Values: []float64{0, 3, -10, 0, 0, 0}},
			{Name: "y", Shape: []int{2}, Values: []float64{1, 2}},
			{Name: "dp", DType: dtype.Float16, Shape: []int{2, 1, 3}, Want: []float64{0, most, -most, 0, -1, -1.5}, Bound: 1e-3},
		}}
		g.Saturate = !math.IsInf(most, 1)
		c.Test(t, d, func(cmd *vk.Cmd, x map[string]vk.Tensor) error { return g.Host().Bind(x, nil, kit.Backward)(cmd) })
	}
}
