package gmm_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
)

// draw returns inputs with logits times scale, in the formats of p.
func draw(p gmm.Problem, scale float64) ref.Inputs {
	rng := rand.New(rand.NewPCG(uint64(p.Tokens), uint64(p.Components)))
	normal := func(n int, format dtype.DType, f float64) []float64 { return guard.Random(rng, format, n, f) }
	n := p.Tokens * p.Components
	return ref.Inputs{Logit: normal(n, p.DType, scale), Mu: normal(n, p.DType, 1), LogSigma: normal(n, p.DType, 1), Y: normal(p.Tokens, dtype.Float32, 1)}
}

// TestSuite runs both passes in every format and layout: one component and more than a batch of
// loads, tokens that do and do not fill a workgroup, logits of ordinary size and of 10000, and
// gradients in other formats than the mixtures.
func TestSuite(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	for i, size := range [][2]int{{1, 1}, {1, 10}, {2, 3}, {63, 10}, {64, 1}, {65, 7}, {200, 10}, {20, 16}, {9, 17}, {3, 1000}, {5000, 2}} {
		for j, format := range dtype.All() {
			p := gmm.Problem{Tokens: size[0], Components: size[1], DType: format, Grad: dtype.Some(dtype.All()[(i+j)%3])}
			scale := []float64{1, 1e4}[(i+j)%2]
			layout := guard.Layout((i + j) % 3)
			t.Run(fmt.Sprintf("%dx%d/%v/logits of %g/layout %d", size[0], size[1], format, scale, layout), func(t *testing.T) {
				in := draw(p, scale)
				forwardCase(t, d, p, in, layout)
				backwardCase(t, d, p, in, layout, j == 1)
			})
		}
	}
}

func inputs(p gmm.Problem, in ref.Inputs) []guard.Tensor {
	mixtures := []int{p.Tokens, p.Components}
	return []guard.Tensor{
		{Name: "logit", DType: p.DType, Shape: mixtures, Values: in.Logit},
		{Name: "mu", DType: p.DType, Shape: mixtures, Values: in.Mu},
		{Name: "log_sigma", DType: p.DType, Shape: mixtures, Values: in.LogSigma},
		{Name: "y", DType: dtype.Float32, Shape: []int{p.Tokens}, Values: in.Y},
	}
}

// tensors returns the tensors of a case, by name.
func tensors(x map[string]vk.Tensor) gmm.Tensors {
	return gmm.Tensors{Logit: x["logit"], Mu: x["mu"], LogSigma: x["log_sigma"], Y: x["y"], LogP: x["log_p"], Loss: x["loss"]}
}

// interleaved returns the tensors with the mixtures in p, and the gradients in dp.
func interleaved(x map[string]vk.Tensor) (t gmm.Tensors, g gmm.Gradients) {
	t = tensors(x)
	t.Logit, t.Mu, t.LogSigma = gmm.Interleaved(x["p"])
	g.DLogit, g.DMu, g.DLogSigma = gmm.Interleaved(x["dp"])
	return t, g
}

func forwardCase(t *testing.T, d *vk.Device, p gmm.Problem, in ref.Inputs, layout guard.Layout) {
	logP, loss := ref.Forward(in, p)
	plain, plainLoss := ref.PlainForward(in, p)
	b := ref.ForwardBounds(in, logP, plain, loss, plainLoss)
	c := guard.Case{Name: "forward", Layout: layout, Tensors: append(inputs(p, in),
		guard.Tensor{Name: "log_p", DType: dtype.Float32, Shape: []int{p.Tokens}, Want: logP, Bound: b.LogP},
		guard.Tensor{Name: "loss", DType: dtype.Float32, Shape: []int{1}, Want: []float64{loss}, Bound: b.Loss})}
	c.Test(t, d, func(cmd *vk.Cmd, x map[string]vk.Tensor) error {
		return gmm.Forward(cmd, tensors(x), p, gmm.Options{})
	})
}

func backwardCase(t *testing.T, d *vk.Device, p gmm.Problem, in ref.Inputs, layout guard.Layout, withDLoss bool) {
	dloss := 1.0
	list := inputs(p, in)
	if withDLoss {
		dloss = -2.5
		list = append(list, guard.Tensor{Name: "dloss", DType: dtype.Float32, Shape: []int{1}, Values: []float64{dloss}})
	}
	want := ref.Backward(in, dloss, p)
	b := ref.BackwardBounds(in, want, ref.PlainBackward(in, dloss, p), dloss, p)
	mixtures := []int{p.Tokens, p.Components}
	c := guard.Case{Name: "backward", Layout: layout, Tensors: append(list,
		guard.Tensor{Name: "dlogit", DType: p.GradDType(), Shape: mixtures, Want: want.Logit, Bound: b.DLogit},
		guard.Tensor{Name: "dmu", DType: p.GradDType(), Shape: mixtures, Want: want.Mu, Bound: b.DMu},
		guard.Tensor{Name: "dlog_sigma", DType: p.GradDType(), Shape: mixtures, Want: want.LogSigma, Bound: b.DLogSigma})}
	c.Test(t, d, func(cmd *vk.Cmd, x map[string]vk.Tensor) error {
		g := gmm.Gradients{DLoss: x["dloss"], DLogit: x["dlogit"], DMu: x["dmu"], DLogSigma: x["dlog_sigma"]}
		return gmm.Backward(cmd, tensors(x), g, p, gmm.Options{})
	})
}

// TestInterleaved runs both passes on tensors (tokens, components, 3). The memory between their
// rows is watched. The last axis is contiguous in one layout, and permuted in the other.
func TestInterleaved(t *testing.T) {
	d := vktest.Open(t, vktest.WholeBuffers)
	p := gmm.Problem{Tokens: 70, Components: 5, DType: dtype.Float32}
	in := draw(p, 1)
	interleave := func(a, b, c []float64) (x []float64) {
		for i := range a {
			x = append(x, a[i], b[i], c[i])
		}
		return x
	}
	want := ref.Backward(in, 1, p)
	b := ref.BackwardBounds(in, want, ref.PlainBackward(in, 1, p), 1, p)
	logP, loss := ref.Forward(in, p)
	shape := []int{70, 5, 3}
	for layout := range guard.Layouts {
		c := guard.Case{Layout: layout, Tensors: []guard.Tensor{
			{Name: "p", Shape: shape, Values: interleave(in.Logit, in.Mu, in.LogSigma)},
			{Name: "y", Shape: []int{70}, Values: in.Y},
			{Name: "dp", Shape: shape, Want: interleave(want.Logit, want.Mu, want.LogSigma), Bound: max(b.DLogit, b.DMu, b.DLogSigma)},
			{Name: "log_p", Shape: []int{70}, Want: logP, Bound: 1e-5},
			{Name: "loss", Shape: []int{1}, Want: []float64{loss}, Bound: 1e-5},
		}}
		_, err := c.Check(d, func(cmd *vk.Cmd, x map[string]vk.Tensor) error {
			t, g := interleaved(x)
			if err := gmm.Forward(cmd, t, p, gmm.Options{}); err != nil {
				return err
			}
			return gmm.Backward(cmd, t, g, p, gmm.Options{})
		})
		require.NoError(t, err)
	}
}

// TestExtremes has every combination of extreme logits, deviations and distances in two
// components. It compares each result relative to itself: a bound for the largest says nothing of
// the others. A result that float32 cannot hold must be the infinity that it rounds to.
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

// TestErrors has the message of arguments that do not fit.
func TestErrors(t *testing.T) {
	d := vktest.Open(t)
	tensor := func(shape ...int) vk.Tensor { return vktest.Tensor(t, d, dtype.Float32, shape...) }
	c, err := d.NewCmd("errors")
	require.NoError(t, err)
	t.Cleanup(c.Close)
	p, y := gmm.Problem{Tokens: 4, Components: 2}, tensor(4)
	good, grad := interleaved(map[string]vk.Tensor{"p": tensor(4, 2, 3), "dp": tensor(4, 2, 3), "y": y, "log_p": tensor(4), "loss": tensor(1)})
	forward := func(change func(t *gmm.Tensors)) error {
		c.Reset()
		t := good
		change(&t)
		return gmm.Forward(c, t, p, gmm.Options{})
	}
	backward := func(change func(g *gmm.Gradients)) error {
		c.Reset()
		g := grad
		change(&g)
		return gmm.Backward(c, good, g, p, gmm.Options{})
	}
	require.NoError(t, forward(func(*gmm.Tensors) {}))
	require.NoError(t, forward(func(t *gmm.Tensors) { t.LogP, t.Loss = vk.Tensor{}, vk.Tensor{} }))
	require.EqualError(t, forward(func(t *gmm.Tensors) { t.LogP = y }), "gmm: log_p overlaps y: outputs need memory of their own")
	require.EqualError(t, forward(func(t *gmm.Tensors) { t.Loss = y }), "gmm: loss has shape [4] and strides [1], want shape [1]")
	require.EqualError(t, forward(func(t *gmm.Tensors) { t.LogSigma = vk.Tensor{} }), "gmm: log_sigma has no buffer")
	require.EqualError(t, forward(func(t *gmm.Tensors) { t.Logit, t.Mu, t.LogSigma = gmm.Interleaved(y) }), "gmm: logit has shape [4] and strides [1], want shape [4 2]")
	require.EqualError(t, gmm.Forward(c, good, gmm.Problem{}, gmm.Options{}), "gmm: tokens=0 is not positive")
	require.EqualError(t, backward(func(g *gmm.Gradients) { g.DLogit, g.DMu, g.DLogSigma = good.Logit, good.Mu, good.LogSigma }),
		"gmm: dp overlaps p: outputs need memory of their own")
	require.EqualError(t, backward(func(g *gmm.Gradients) { g.DMu = g.DLogit }), "gmm: dmu overlaps dlogit: outputs need memory of their own")
	require.EqualError(t, backward(func(g *gmm.Gradients) { g.DLoss = y }), "gmm: dloss has shape [4] and strides [1], want shape [1]")
	small, err := d.NewBuffer("workspace", 4)
	require.NoError(t, err)
	t.Cleanup(small.Close)
	c.Reset()
	require.EqualError(t, gmm.Forward(c, good, p, gmm.Options{Workspace: small}), "gmm: workspace has 4 bytes, want 16")
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
