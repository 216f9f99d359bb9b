package call

import (
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// GMM is a call of a function of package gmm.
type GMM struct {
	gmm.Problem
	Call        string  // GMMBackward, GMMMerge, or else gmm.Forward
	LogP, Loss  bool    // which of both is written
	DLoss       float64 // 0: none is given
	Saturate    bool
	Interleaved bool // mixtures are one tensor
	Data
}

// The calls of package gmm beside Forward.
const (
	GMMBackward = "backward"
	GMMMerge    = "merge"
)

// Pass implements Call. Merge belongs to the forward pass.
func (g *GMM) Pass() kit.Pass { return Direction{g.Call == GMMBackward}.Pass() }

// Tidy gives a call an output.
func (g *GMM) Tidy() { g.LogP = g.LogP || !g.Loss }

// Tensors implements Call. Logits have one magnitude, logarithms of deviations another.
func (g *GMM) Tensors() []Tensor {
	t, grad, token := g.DType, g.GradDType(), []int{g.Tokens}
	parts, whole := []int{g.Tokens, g.Components}, []int{g.Tokens, g.Components, 3}
	merged := g.Call == GMMMerge
	apart, one := !g.Interleaved && !merged, g.Interleaved && !merged
	return []Tensor{
		{Name: "logit", DType: t, Shape: parts, Scale: g.Magnitude, Main: true, Off: !apart, Drawn: true},
		{Name: "mu", DType: t, Shape: parts, Off: !apart, Drawn: true},
		{Name: "log_sigma", DType: t, Shape: parts, Scale: g.Second, Off: !apart, Drawn: true},
		{Name: "p", DType: t, Shape: whole, Off: !one},
		{Name: "y", Shape: token, Off: merged, Drawn: true},
		{Name: "states", Shape: []int{g.Components, g.Tokens, gmm.StateSize}, Align: 4, Off: !merged},
		{Name: "dloss", Shape: []int{1}, Role: Upstream, Off: g.DLoss == 0},
		{Name: "log_p", Shape: token, Role: Output, Once: true, Off: !g.LogP},
		{Name: "loss", Shape: []int{1}, Role: Output, Once: true, Off: !g.Loss},
		{Name: "dlogit", DType: grad, Shape: parts, Role: Gradient, Off: g.Interleaved},
		{Name: "dmu", DType: grad, Shape: parts, Role: Gradient, Off: g.Interleaved},
		{Name: "dlog_sigma", DType: grad, Shape: parts, Role: Gradient, Off: g.Interleaved},
		{Name: "dp", DType: grad, Shape: whole, Role: Gradient, Off: !g.Interleaved},
	}
}

// Adjust implements Call: p and states follow from the parts. Numbers beyond float16's largest are
// infinite, and just below it roundoff decides: there dloss makes the gradients smaller.
func (g *GMM) Adjust(x Values) {
	var in ref.Inputs
	Bind(x, &in)
	switch {
	case g.Call == GMMMerge:
		x["states"] = ref.States(in, g.Problem)
	case g.Interleaved:
		x["p"] = interleave(in.Logit, in.Mu, in.LogSigma)
	}
	if g.Call == GMMBackward && g.GradDType() == dtype.Float16 && !g.Saturate {
		want := ref.Backward(in, OrOne(g.DLoss), g.Problem)
		if most := max(tolerance.Largest(want.Logit), tolerance.Largest(want.Mu), tolerance.Largest(want.LogSigma)); most > 30000 {
			g.DLoss = float64(float32(OrOne(g.DLoss) * 30000 / most))
		}
	}
	if g.DLoss != 0 {
		x["dloss"] = []float64{g.DLoss}
	}
}

// interleave returns the numbers of three tensors as the last axis of one.
func interleave(a, b, c []float64) (x []float64) {
	for i := range a {
		x = append(x, a[i], b[i], c[i])
	}
	return x
}

func (g *GMM) Want(x Values, pass kit.Pass) Outputs {
	p, in, dloss := g.Problem, ref.Inputs{Y: x["y"]}, 1.0
	for i, v := range x["p"] {
		part := []*[]float64{&in.Logit, &in.Mu, &in.LogSigma}[i%3]
		*part = append(*part, v)
	}
	if in.Logit == nil {
		Bind(x, &in)
	}
	if pass == kit.Forward {
		logP, loss := ref.Forward(in, p)
		plain, plainLoss := ref.PlainForward(in, p)
		b := ref.ForwardBounds(in, logP, plain, loss, plainLoss)
		return Outputs{"logp": {Want: logP, Bound: b.LogP}, "loss": {Want: []float64{loss}, Bound: b.Loss}}
	}
	if given := x["dloss"]; given != nil {
		dloss = given[0]
	}
	want := ref.Backward(in, dloss, p)
	b := ref.BackwardBounds(in, want, ref.PlainBackward(in, dloss, p), dloss, p)
	if g.Saturate && p.GradDType() == dtype.Float16 {
		for _, x := range [][]float64{want.Logit, want.Mu, want.LogSigma} {
			for i, v := range x {
				x[i] = max(-65504, min(v, 65504))
			}
		}
	}
	return Outputs{
		"dlogit": {Want: want.Logit, Bound: b.DLogit}, "dmu": {Want: want.Mu, Bound: b.DMu}, "dlogsigma": {Want: want.LogSigma, Bound: b.DLogSigma},
		"dp": {Want: interleave(want.Logit, want.Mu, want.LogSigma), Bounds: []float64{b.DLogit, b.DMu, b.DLogSigma}},
	}
}

// Host implements Call. In memory three tensors may be one.
func (g *GMM) Host() Host {
	if g.Call == GMMMerge {
		return Host{Choose: g.chooseMerge, Bind: g.bindMerge}
	}
	return hosted(g, g.Problem, gmm.Choose, gmm.Forward, gmm.Backward).With(func(t map[string]vk.Tensor) {
		if g.Interleaved {
			t["logit"], t["mu"], t["log_sigma"] = gmm.Interleaved(t["p"])
			t["dlogit"], t["dmu"], t["dlog_sigma"] = gmm.Interleaved(t["dp"])
		}
	})
}

// chooseMerge is Choose for gmm.Merge, bindMerge Bind.
func (g *GMM) chooseMerge(caps *vk.Caps, pass kit.Pass) (kit.Plan, error) {
	plan, err := gmm.Choose(caps, g.Problem, pass, gmm.Options{})
	return simplePlan{plan.String(), plan.Workspace(), []string{"gmm_merge"}}, err
}

func (g *GMM) bindMerge(t map[string]vk.Tensor, workspace *vk.Buffer, _ kit.Pass) Recording {
	return func(c *vk.Cmd) error {
		return gmm.Merge(c, t["states"], gmm.Tensors{LogP: t["log_p"], Loss: t["loss"]}, g.Problem, gmm.Options{Workspace: workspace})
	}
}

// drawGMM draws log-probabilities of tokens under mixtures.
func drawGMM(family, rng *rand.Rand, s Space) Call {
	p := &GMM{Call: []string{"forward", "forward", GMMBackward, GMMBackward, GMMMerge}[family.IntN(5)]}
	var ok bool
	if p.DType, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	p.Grad = dtype.Some(dtype.All()[family.IntN(3)])
	outputs := one(family, 1, 2, 3, 3)
	p.LogP, p.Loss = outputs&1 > 0, outputs&2 > 0
	p.Data = DrawData(family, rng)
	p.Interleaved = rng.IntN(2) == 0
	if p.Call == GMMBackward {
		p.Saturate = family.IntN(3) == 0
		if family.IntN(2) == 0 {
			p.DLoss = float64(float32(rng.NormFloat64() * 10))
		}
	}
	if p.Magnitude != 0 {
		p.Magnitude = min(p.Magnitude, Most(p.DType)/p.Largest())
		p.Second = TenTo(rng, -3, 0.4)
	}
	p.Tokens, p.Components = Size(rng, 3000), 1+rng.IntN(20)
	switch rng.IntN(8) {
	case 0:
		p.Components = Size(rng, 2000)
	case 1:
		if !s.Soft {
			p.Tokens, p.Components = 32000+rng.IntN(4000), 1+rng.IntN(10)
		}
	}
	Within(rng, s.Budget(rng), func() float64 { return 100 * float64(p.Tokens) * float64(p.Components) }, &p.Tokens, &p.Components)
	return p
}
