package trial

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	gmmref "github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/mixture/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk"
)

// mixtureKernel draws mixtures whose components are heads.
func mixtureKernel() Kernel {
	return Kernel{Name: "mixture", Weight: 2, New: func() Problem { return &mixtureProblem{} }, Draw: drawMixture}
}

// mixtureProblem is a call of mixture.Forward or mixture.Backward. With Config or Direct it is a
// call of skinny.Mixture and gmm.Merge.
type mixtureProblem struct {
	mixture.Problem
	Impl       string
	Backward   bool
	Groups     int
	AtATime    int // heads
	Outputs    bool
	LogP, Loss bool    // which of both is written
	DLoss      float64 // 0: none is given

	Direct         bool
	Config         string // "": what the table has
	TransA, TransB bool
	kernelData
}

// String implements Problem.
func (p *mixtureProblem) String() string {
	return fmt.Sprintf("%v, backward=%v groups=%d at_a_time=%d outputs=%v direct=%v %s (%s)", p.Problem, p.Backward, p.Groups, p.AtATime, p.Outputs, p.Direct, p.Impl, p.Config)
}

// options returns those of the call.
func (p *mixtureProblem) options() (opt mixture.Options, err error) {
	opt.Impl, err = engine.ParseImpl(p.Impl)
	opt.Groups, opt.HeadsAtATime, opt.Outputs = p.Groups, p.AtATime, p.Outputs
	return opt, err
}

// product returns the problem of skinny.Mixture, with its options.
func (p *mixtureProblem) product() (x engine.Problem, opt engine.Options, err error) {
	if opt.Impl, err = engine.ParseImpl(p.Impl); err != nil {
		return x, opt, err
	}
	opt.Config, err = parseGemmConfig(p.Config)
	return engine.Problem{
		Batch: p.Heads, M: p.Tokens, N: p.Hidden, K: p.In, DType: p.DType, Out: dtype.Float32, TransA: p.TransA, TransB: p.TransB, Activation: engine.SiLU,
	}, opt, err
}

// bytes returns the workspace.
func (p *mixtureProblem) bytes(caps *vk.Caps) (int64, error) {
	if p.Direct {
		x, opt, err := p.product()
		if err != nil {
			return 0, err
		}
		plan, err := skinny.ChooseMixture(caps, x, opt)
		return plan.Workspace(), err
	}
	opt, err := p.options()
	if err != nil {
		return 0, err
	}
	return mixture.Workspace(caps, p.Problem, call.Direction{Backward: p.Backward}.Pass(), opt)
}

// Supports implements Problem.
func (p *mixtureProblem) Supports(caps *vk.Caps) error {
	_, err := p.bytes(caps)
	return err
}

// inputs returns the tensors that the problem reads. Elements of pre and of the outputs of heads
// are about 1, or Second. Logarithms of deviations are a third of that, so that gradients are more
// than roundoff.
func (p *mixtureProblem) inputs() ref.Inputs {
	in := ref.Inputs{
		X:  p.Numbers(0, p.DType, p.Tokens*p.In, call.OrOne(p.Magnitude)),
		W1: p.Normal(1, p.DType, p.Heads*p.In*p.Hidden, 1/call.OrOne(p.Magnitude)/math.Sqrt(float64(p.In))),
		W2: p.Normal(2, p.DType, p.Heads*p.Hidden*3, call.OrOne(p.Second)/math.Sqrt(float64(p.Hidden))),
		Y:  p.Normal(3, dtype.Float32, p.Tokens, 1),
	}
	for i := 2; i < len(in.W2); i += 3 {
		in.W2[i] = float64(p.DType.Round(float32(in.W2[i] / 3)))
	}
	return in
}

// fit makes w2 smaller until logarithms of deviations are within what problems are for.
func (p *mixtureProblem) fit(in ref.Inputs) {
	lower := func(t []float64) {
		for i, v := range t {
			t[i] = float64(p.DType.Round(float32(v / 4)))
		}
	}
	for range 20 {
		m := p.sampled(in).outputs()
		if tolerance.Largest(m.LogSigma) < 8 && max(tolerance.Largest(m.Mu), tolerance.Largest(m.Logit)) < 1000 {
			return
		}
		lower(in.W2)
	}
}

// A mixtureSample is the part of a problem that has some of its tokens.
type mixtureSample struct {
	p     mixture.Problem
	in    ref.Inputs
	dloss float64
	rows  []int
}

func (s *mixtureSample) outputs() gmmref.Inputs { return ref.Outputs(s.in, s.p) }

// sampled returns the part of the problem that the reference computes.
func (p *mixtureProblem) sampled(in ref.Inputs) *mixtureSample {
	s := &mixtureSample{p: p.Problem, in: in, dloss: call.OrOne(p.DLoss)}
	if rows := call.SampleRows(p.Rand(30), p.Tokens, p.Sample); rows != nil {
		s.rows = rows
		s.p, s.in, s.dloss = ref.Tokens(rows, in, s.dloss, p.Problem)
	}
	return s
}

// tensors returns those of the pass.
func (p *mixtureProblem) tensors() []guard.Tensor {
	in := p.inputs()
	p.fit(in)
	s := p.sampled(in)
	list := []guard.Tensor{
		{Name: "x", DType: p.DType, Shape: p.XShape(), Values: in.X},
		{Name: "w1", DType: p.DType, Shape: p.W1Shape(), Values: in.W1},
		{Name: "w2", DType: p.DType, Shape: p.W2Shape(), Values: in.W2},
		{Name: "y", Shape: []int{p.Tokens}, Values: in.Y},
	}
	unknown := func(t guard.Tensor) guard.Tensor { // it is of all tokens
		if s.rows != nil {
			t.Want, t.Sample = []float64{}, []int{}
		}
		return t
	}
	if !p.Backward {
		logP, loss := ref.Forward(s.in, s.p)
		b := ref.ForwardBoundsOfFew(s.in, s.p)
		if p.LogP {
			list = append(list, guard.Tensor{Name: "log_p", Shape: []int{p.Tokens}, Want: logP, Bound: b.LogP, Sample: s.rows})
		}
		if p.Loss {
			list = append(list, unknown(guard.Tensor{Name: "loss", Shape: []int{1}, Want: []float64{loss}, Bound: b.Loss}))
		}
		return list
	}
	want := ref.Backward(s.in, s.dloss, s.p)
	dloss, given := call.OrOne(p.DLoss), p.DLoss != 0
	if most := p.largest(s, want); most > call.Roomy {
		factor := math.Ldexp(1, -int(math.Ceil(math.Log2(most/call.Roomy))))
		dloss, s.dloss, given = dloss*factor, s.dloss*factor, true
		want = ref.Backward(s.in, s.dloss, s.p)
	}
	b := ref.BackwardBoundsOfFew(s.in, want, s.dloss, s.p)
	if given {
		list = append(list, guard.Tensor{Name: "dloss", Shape: []int{1}, Values: []float64{dloss}})
	}
	dx := guard.Tensor{Name: "dx", DType: p.DType, Shape: p.XShape(), Want: want.DX, Bound: b.DX}
	if s.rows != nil {
		dx.Sample = call.Elements(s.rows, p.In)
	}
	return append(list, dx,
		unknown(guard.Tensor{Name: "dw1", DType: p.GradDType(), Shape: p.W1Shape(), Want: want.DW1, Bound: b.DW1}),
		unknown(guard.Tensor{Name: "dw2", DType: p.GradDType(), Shape: p.W2Shape(), Want: want.DW2, Bound: b.DW2}))
}

// largest returns the largest number that float16 has to hold, 0 without float16. The largest of a
// sample counts as a quarter of the largest of all.
func (p *mixtureProblem) largest(s *mixtureSample, want ref.Gradients) (most float64) {
	if p.DType == dtype.Float16 {
		dy := gmmref.Backward(s.outputs(), s.dloss, s.p.Mixtures())
		most = max(tolerance.Largest(dy.Logit), tolerance.Largest(dy.Mu), tolerance.Largest(dy.LogSigma), tolerance.Largest(want.DX))
	}
	if p.GradDType() == dtype.Float16 {
		most = max(most, tolerance.Largest(want.DW1), tolerance.Largest(want.DW2))
	}
	if s.rows != nil {
		most *= 4
	}
	return most
}

// Check implements Problem.
func (p *mixtureProblem) Check(ctx context.Context, r *Runner) error {
	bytes, err := p.bytes(r.Device().Caps())
	if err != nil {
		return err
	}
	list := p.tensors()
	if p.Direct {
		return p.checkDirect(ctx, r, list, bytes)
	}
	opt, err := p.options()
	if err != nil {
		return err
	}
	list = append(list, p.WorkspaceTensor(bytes, 0)...)
	return p.check(ctx, r, "mixture", list, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt := opt
		opt.Workspace = t[call.WorkspaceName].Buffer
		x := mixture.Tensors{X: t["x"], W1: t["w1"], W2: t["w2"], Y: t["y"], LogP: t["log_p"], Loss: t["loss"]}
		if p.Backward {
			return mixture.Backward(c, x, mixture.Gradients{DLoss: t["dloss"], DX: t["dx"], DW1: t["dw1"], DW2: t["dw2"]}, p.Problem, opt)
		}
		return mixture.Forward(c, x, p.Problem, opt)
	})
}

// checkDirect runs the kernel of package skinny, and gmm.Merge on its states.
func (p *mixtureProblem) checkDirect(ctx context.Context, r *Runner, list []guard.Tensor, bytes int64) error {
	x, opt, err := p.product()
	if err != nil {
		return err
	}
	for i := range list {
		switch t := &list[i]; {
		case t.Name == "x" && p.TransA:
			t.Values, t.Shape = call.Turn(t.Values, p.Tokens, p.In), []int{p.In, p.Tokens}
		case t.Name == "w1" && p.TransB:
			t.Values, t.Shape = call.Turn(t.Values, p.In, p.Hidden), []int{p.Heads, p.Hidden, p.In}
		}
	}
	groups := max(1, min(p.Groups, p.Heads))
	list = append(list, p.WorkspaceTensor(bytes, workspaceOffset)...)
	list = append(list, guard.Tensor{Name: "states", Shape: []int{groups, p.Tokens, gmm.StateSize}, Scratch: true, Place: &guard.Place{Offset: 64, RowGap: 4 * (p.Tokens % 3), MatrixGap: 8}})
	return p.check(ctx, r, "mixture", list, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt := opt
		if w, ok := t[call.WorkspaceName]; ok {
			opt.Workspace, opt.WorkspaceOffset = w.Buffer, workspaceOffset
		}
		a := t["x"]
		a.Shape, a.Strides = []int{p.Heads, a.Shape[0], a.Shape[1]}, []int{0, a.Strides[0], 1}
		if err := skinny.Mixture(c, skinny.MixtureTensors{A: a, B: t["w1"], W: t["w2"], Y: t["y"], States: t["states"]}, x, opt); err != nil {
			return err
		}
		return gmm.Merge(c, t["states"], gmm.Tensors{LogP: t["log_p"], Loss: t["loss"]}, p.Mixtures(), gmm.Options{})
	})
}

// Smaller implements Problem.
func (p *mixtureProblem) Smaller() (list []Problem) {
	add := func(change func(q *mixtureProblem)) {
		q := *p
		change(&q)
		if q != *p && q.Validate() == nil && (q.LogP || q.Loss) {
			list = append(list, &q)
		}
	}
	add(func(q *mixtureProblem) { q.Config = "" })
	sizes := *p
	halves([]*int{&sizes.Heads, &sizes.Tokens, &sizes.In, &sizes.Hidden}, func() {
		add(func(q *mixtureProblem) {
			q.Heads, q.Tokens, q.In, q.Hidden = sizes.Heads, sizes.Tokens, sizes.In, sizes.Hidden
		})
	})
	add(func(q *mixtureProblem) { q.AtATime = 0 })
	add(func(q *mixtureProblem) { q.Groups = 0 })
	add(func(q *mixtureProblem) { q.Outputs = false })
	add(func(q *mixtureProblem) { q.TransA = false })
	add(func(q *mixtureProblem) { q.TransB = false })
	add(func(q *mixtureProblem) { q.DLoss = 0 })
	add(func(q *mixtureProblem) { q.Loss = false })
	add(func(q *mixtureProblem) { q.LogP = false })
	add(func(q *mixtureProblem) { q.Grad = 0 })
	p.smaller(func(d kernelData) { add(func(q *mixtureProblem) { q.kernelData = d }) })
	return list
}

// drawMixture draws a problem.
func drawMixture(family, rng *rand.Rand, s Space) Problem {
	p := &mixtureProblem{Backward: family.IntN(2) == 0, Outputs: family.IntN(4) == 0}
	var ok bool
	if p.Impl, ok = s.Impl(family, gemmImpls()...); !ok {
		return nil
	}
	p.Direct = !p.Backward && p.Impl != "scalar" && family.IntN(2) == 0
	if p.Direct {
		half := s
		half.DTypes = intersect(s.DTypes, dtype.Float16, dtype.BFloat16)
		if len(half.DTypes) > 0 {
			s = half
		}
	}
	x, ok := drawPerceptron(family, rng, s, 1+rng.IntN(12), 3, p.Backward, &p.Data)
	if !ok {
		return nil
	}
	p.Problem = mixture.Problem{Tokens: x.Tokens, Heads: x.Heads, In: x.In, Hidden: x.Hidden, DType: x.DType, Grad: x.Grad}
	if p.Magnitude != 0 {
		p.Second = tenTo(rng, -2, 0.3)
		p.Magnitude = max(p.Magnitude, 0.01) // w1 is in float16
	}
	switch family.IntN(4) {
	case 0:
		p.LogP = true
	case 1:
		p.Loss = true
	default:
		p.LogP, p.Loss = true, true
	}
	p.Groups, p.AtATime = rng.IntN(4), rng.IntN(4)
	if p.Backward && family.IntN(2) == 0 {
		p.DLoss = float64(float32(rng.NormFloat64() * 10))
	}
	if !p.Direct {
		p.Impl = softImpl(family, s, p.Impl, p.DType)
		return p
	}
	p.TransA, p.TransB = family.IntN(3) == 0, family.IntN(3) == 0
	if p.Impl == "auto" || family.IntN(3) == 0 {
		return p
	}
	caps := kernelCaps(s.Soft)
	for range 100 {
		c := engine.Config{}
		drawMatrixTiles(family, s, &c)
		c.AlignRows = family.IntN(2) == 0
		q := *p
		if q.Config = c.String(); q.DType == dtype.BFloat16 && s.Soft {
			q.DType = dtype.Float16
		}
		if q.Supports(caps) == nil {
			p.Config = q.Config
			break
		}
	}
	return p
}
