package trial

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// gmmKernel draws log-probabilities of tokens under mixtures.
func gmmKernel() Kernel {
	return Kernel{Name: "gmm", Weight: 1, New: func() Problem { return &gmmProblem{} }, Draw: drawGMM}
}

// The calls of package gmm.
const (
	gmmForward  = "forward"
	gmmBackward = "backward"
	gmmMerge    = "merge"
)

// gmmProblem is a call of gmm.Forward, Backward or Merge.
type gmmProblem struct {
	gmm.Problem
	Call        string
	LogP, Loss  bool    // which of both is written
	DLoss       float64 // 0: none is given
	Saturate    bool
	Interleaved bool // mixtures are one tensor
	kernelData
}

// String implements Problem.
func (p *gmmProblem) String() string {
	return fmt.Sprintf("%s, %d tokens of %d components, %v, gradients %v", p.Call, p.Tokens, p.Components, p.DType, p.GradDType())
}

// pass returns the pass of the call. Merge belongs to the forward pass.
func (p *gmmProblem) pass() kit.Pass {
	if p.Call == gmmBackward {
		return kit.Backward
	}
	return kit.Forward
}

// Supports implements Problem.
func (p *gmmProblem) Supports(caps *vk.Caps) error {
	return gmm.Supports(caps, p.Problem, p.pass(), gmm.Options{})
}

// inputs returns the tensors that the problem reads. Logits have one magnitude, logarithms of
// deviations another.
func (p *gmmProblem) inputs() ref.Inputs {
	n := p.Tokens * p.Components
	return ref.Inputs{
		Logit: p.Numbers(0, p.DType, n, call.OrOne(p.Magnitude)), Mu: p.Normal(1, p.DType, n, 1),
		LogSigma: p.Normal(2, p.DType, n, call.OrOne(p.Second)), Y: p.Normal(3, dtype.Float32, p.Tokens, 1),
	}
}

// mixtures returns tensors of a mixture, or one.
func (p *gmmProblem) mixtures(prefix string, t dtype.DType, x [3][]float64, want bool, bound [3]float64) []guard.Tensor {
	shape := []int{p.Tokens, p.Components}
	fill := func(name string, shape []int, x []float64, bound float64) guard.Tensor {
		if want {
			return guard.Tensor{Name: prefix + name, DType: t, Shape: shape, Want: x, Bound: bound}
		}
		return guard.Tensor{Name: prefix + name, DType: t, Shape: shape, Values: x}
	}
	if !p.Interleaved {
		return []guard.Tensor{fill("logit", shape, x[0], bound[0]), fill("mu", shape, x[1], bound[1]), fill("log_sigma", shape, x[2], bound[2])}
	}
	all := make([]float64, 0, 3*len(x[0]))
	for i := range x[0] {
		all = append(all, x[0][i], x[1][i], x[2][i])
	}
	return []guard.Tensor{fill("p", append(shape, 3), all, max(bound[0], bound[1], bound[2]))}
}

// parts returns logit, mu and log sigma of named tensors, or with a prefix d their gradients.
func (p *gmmProblem) parts(prefix string, t map[string]vk.Tensor) (logit, mu, logSigma vk.Tensor) {
	if p.Interleaved {
		return gmm.Interleaved(t[prefix+"p"])
	}
	return t[prefix+"logit"], t[prefix+"mu"], t[prefix+"log_sigma"]
}

// outputs returns those of Forward and Merge.
func (p *gmmProblem) outputs(in ref.Inputs) (list []guard.Tensor) {
	logP, loss := ref.Forward(in, p.Problem)
	plain, plainLoss := ref.PlainForward(in, p.Problem)
	b := ref.ForwardBounds(in, logP, plain, loss, plainLoss)
	if p.LogP {
		list = append(list, guard.Tensor{Name: "log_p", Shape: []int{p.Tokens}, Want: logP, Bound: b.LogP})
	}
	if p.Loss {
		list = append(list, guard.Tensor{Name: "loss", Shape: []int{1}, Want: []float64{loss}, Bound: b.Loss})
	}
	return list
}

// states returns what gmm.Merge reads: a state for every component.
func (p *gmmProblem) states(in ref.Inputs) guard.Tensor {
	place := p.Place(0, []int{gmm.StateSize})
	place.Offset, place.RowGap, place.MatrixGap = place.Offset/4*4, place.RowGap/4*4, place.MatrixGap/4*4
	return guard.Tensor{Name: "states", Shape: []int{p.Components, p.Tokens, gmm.StateSize}, Values: ref.States(in, p.Problem), Place: place}
}

// gradients returns the tensors of Backward.
func (p *gmmProblem) gradients(in ref.Inputs) []guard.Tensor {
	dloss := call.OrOne(p.DLoss)
	want := ref.Backward(in, dloss, p.Problem)
	most := max(tolerance.Largest(want.Logit), tolerance.Largest(want.Mu), tolerance.Largest(want.LogSigma))
	given := p.DLoss != 0
	if p.GradDType() == dtype.Float16 && !p.Saturate && most > 30000 {
		// Numbers beyond float16's largest are infinite; just below it roundoff decides.
		given, dloss = true, float64(float32(dloss*30000/most))
		want = ref.Backward(in, dloss, p.Problem)
	}
	plain := ref.PlainBackward(in, dloss, p.Problem)
	b := ref.BackwardBounds(in, want, plain, dloss, p.Problem)
	if p.GradDType() == dtype.Float16 {
		for _, x := range [][]float64{want.Logit, want.Mu, want.LogSigma} {
			for i, v := range x {
				x[i] = max(-65504, min(v, 65504))
			}
		}
	}
	var list []guard.Tensor
	if given {
		list = append(list, guard.Tensor{Name: "dloss", Shape: []int{1}, Values: []float64{dloss}})
	}
	return append(list, p.mixtures("d", p.GradDType(), [3][]float64{want.Logit, want.Mu, want.LogSigma}, true, [3]float64{b.DLogit, b.DMu, b.DLogSigma})...)
}

// Check implements Problem.
func (p *gmmProblem) Check(ctx context.Context, r *Runner) error {
	in := p.inputs()
	list := p.mixtures("", p.DType, [3][]float64{in.Logit, in.Mu, in.LogSigma}, false, [3]float64{})
	list = append(list, guard.Tensor{Name: "y", Shape: []int{p.Tokens}, Values: in.Y})
	bytes := int64(0)
	if p.Loss && p.Call != gmmBackward {
		var err error
		if bytes, err = gmm.Workspace(r.Device().Caps(), p.Problem, kit.Forward, gmm.Options{}); err != nil {
			return err
		}
	}
	switch p.Call {
	case gmmBackward:
		list = append(list, p.gradients(in)...)
	case gmmMerge:
		list = append([]guard.Tensor{p.states(in)}, p.outputs(in)...)
	default:
		list = append(list, p.outputs(in)...)
	}
	list = append(list, p.WorkspaceTensor(bytes, 0)...)
	return p.check(ctx, r, "gmm", list, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt := gmm.Options{Workspace: t[call.WorkspaceName].Buffer, Saturate: p.Saturate}
		x := gmm.Tensors{Y: t["y"], LogP: t["log_p"], Loss: t["loss"]}
		if p.Call == gmmMerge {
			return gmm.Merge(c, t["states"], x, p.Problem, opt)
		}
		x.Logit, x.Mu, x.LogSigma = p.parts("", t)
		if p.Call == gmmForward {
			return gmm.Forward(c, x, p.Problem, opt)
		}
		g := gmm.Gradients{DLoss: t["dloss"]}
		g.DLogit, g.DMu, g.DLogSigma = p.parts("d", t)
		return gmm.Backward(c, x, g, p.Problem, opt)
	})
}

// Smaller implements Problem.
func (p *gmmProblem) Smaller() (list []Problem) {
	add := func(change func(q *gmmProblem)) {
		q := *p
		change(&q)
		if q != *p && q.Validate() == nil && (q.LogP || q.Loss) {
			list = append(list, &q)
		}
	}
	sizes := *p
	halves([]*int{&sizes.Tokens, &sizes.Components}, func() {
		add(func(q *gmmProblem) { q.Tokens, q.Components = sizes.Tokens, sizes.Components })
	})
	add(func(q *gmmProblem) { q.Interleaved = false })
	add(func(q *gmmProblem) { q.Saturate = false })
	add(func(q *gmmProblem) { q.DLoss = 0 })
	add(func(q *gmmProblem) { q.Loss = false })
	add(func(q *gmmProblem) { q.LogP = false })
	add(func(q *gmmProblem) { q.Grad = dtype.Some(dtype.Float32) })
	p.smaller(func(d kernelData) { add(func(q *gmmProblem) { q.kernelData = d }) })
	return list
}

// drawGMM draws a problem.
func drawGMM(family, rng *rand.Rand, s Space) Problem {
	p := &gmmProblem{Call: []string{gmmForward, gmmForward, gmmBackward, gmmBackward, gmmMerge}[family.IntN(5)]}
	var ok bool
	if p.DType, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	p.Grad = dtype.Some(dtype.All()[family.IntN(3)])
	switch family.IntN(4) {
	case 0:
		p.LogP = true
	case 1:
		p.Loss = true
	default:
		p.LogP, p.Loss = true, true
	}
	p.Data = drawData(family, rng)
	p.Interleaved = rng.IntN(2) == 0
	if p.Call == gmmBackward {
		p.Saturate = family.IntN(3) == 0
		if family.IntN(2) == 0 {
			p.DLoss = float64(float32(rng.NormFloat64() * 10))
		}
	}
	if p.Magnitude != 0 {
		p.Magnitude = min(p.Magnitude, call.Most(p.DType)/p.Largest())
		p.Second = tenTo(rng, -3, 0.4)
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
	within(rng, budget(rng, s), func() float64 { return 100 * float64(p.Tokens) * float64(p.Components) }, &p.Tokens, &p.Components)
	return p
}
