package trial

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// normKernel draws normalizations of rows.
func normKernel() Kernel {
	return Kernel{Name: "norm", Weight: 2, New: func() Problem { return &normProblem{} }, Draw: drawNorm}
}

// normProblem is a call of norm.Forward or norm.Backward.
type normProblem struct {
	norm.Problem
	Backward  bool
	Save      bool    // forward: mean and rstd are written
	DResidual bool    // backward: the gradient of the residual is written, too
	Mean      float64 // of rows, in deviations
	Equal     bool    // elements of a row are equal
	Config    *norm.Config
	kernelData
}

// String implements Problem.
func (p *normProblem) String() string {
	s := fmt.Sprintf("%v backward=%v", p.Problem, p.Backward)
	if p.Config != nil {
		s += fmt.Sprintf(" (%v)", p.Config)
	}
	return s
}

// Supports implements Problem.
func (p *normProblem) Supports(caps *vk.Caps) error {
	return norm.Supports(caps, p.Problem, p.pass(), norm.Options{Config: p.Config})
}

func (p *normProblem) pass() kit.Pass {
	if p.Backward {
		return kit.Backward
	}
	return kit.Forward
}

// inputs returns the inputs of a forward pass, and the upstream gradients.
func (p *normProblem) inputs() (in ref.Inputs, up ref.Upstream) {
	n, size := p.Rows*p.Cols, orOne(p.Magnitude)
	in.X = p.numbers(0, p.DType, n, size)
	if p.Mean != 0 || p.Equal {
		rng := p.rng(20)
		common := 0.0
		for i, x := range in.X {
			if i%p.Cols == 0 {
				common = size * p.Mean * (0.5 + rng.Float64())
				if p.Equal && p.Mean == 0 {
					common = size * rng.NormFloat64()
				}
			}
			if p.Equal {
				x = 0
			}
			in.X[i] = float64(p.DType.Round(float32(x + common)))
		}
	}
	in.W = p.plain(1, p.WeightDType, p.Cols, orOne(p.Second))
	// Gradients by x are about dy * w / deviation.
	upstream := 1.0
	if p.DType == dtype.Float16 {
		upstream = min(1, size/orOne(p.Second))
	}
	up.DY = p.plain(2, p.DType, n, upstream)
	if p.Residual {
		in.Residual, up.DSum = p.plain(3, p.DType, n, size), p.plain(4, p.DType, n, 1)
		if p.Equal {
			clear(in.Residual)
		}
	}
	return in, up
}

// forward returns the tensors of a forward pass.
func (p *normProblem) forward() []guard.Tensor {
	in, _ := p.inputs()
	want := ref.Forward(in, p.Problem)
	b := ref.Bounds(want, ref.PlainForward(in, p.Problem), p.Problem)
	rows, row := []int{p.Rows, p.Cols}, []int{p.Rows}
	list := []guard.Tensor{
		{Name: "x", DType: p.DType, Shape: rows, Values: in.X},
		{Name: "w", DType: p.WeightDType, Shape: []int{p.Cols}, Values: in.W},
		{Name: "y", DType: p.DType, Shape: rows, Want: want.Y, Bound: b.Y},
	}
	if p.Residual {
		list = append(list,
			guard.Tensor{Name: "residual", DType: p.DType, Shape: rows, Values: in.Residual},
			guard.Tensor{Name: "sum", DType: p.DType, Shape: rows, Want: want.Sum, Bound: b.Sum})
	}
	if p.Save {
		list = append(list, guard.Tensor{Name: "rstd", Shape: row, Want: want.Rstd, Bound: b.Rstd})
	}
	if p.Save && !p.RMS {
		list = append(list, guard.Tensor{Name: "mean", Shape: row, Want: want.Mean, Bound: b.Mean})
	}
	return list
}

// backward returns those of a backward pass.
func (p *normProblem) backward() []guard.Tensor {
	in, up := p.inputs()
	out := ref.Forward(in, p.Problem)
	want := ref.Backward(out.Sum, in.W, up, p.Problem)
	b := ref.BackwardBounds(want, ref.PlainBackward(out.Sum, in.W, up, p.Problem), out.Sum, in.W, up, p.Problem)
	rows, row := []int{p.Rows, p.Cols}, []int{p.Rows}
	list := []guard.Tensor{
		{Name: "s", DType: p.DType, Shape: rows, Values: out.Sum},
		{Name: "dy", DType: p.DType, Shape: rows, Values: up.DY},
		{Name: "w", DType: p.WeightDType, Shape: []int{p.Cols}, Values: in.W},
		{Name: "rstd", Shape: row, Values: roundAll(dtype.Float32, out.Rstd)},
		{Name: "dx", DType: p.DType, Shape: rows, Want: want.DX, Bound: b.DX},
		{Name: "dw", DType: p.WeightDType, Shape: []int{p.Cols}, Want: want.DW, Bound: b.DW},
	}
	if !p.RMS {
		list = append(list, guard.Tensor{Name: "mean", Shape: row, Values: roundAll(dtype.Float32, out.Mean)})
	}
	if p.Residual {
		list = append(list, guard.Tensor{Name: "dsum", DType: p.DType, Shape: rows, Values: up.DSum})
		if p.DResidual {
			list = append(list, guard.Tensor{Name: "dresidual", DType: p.DType, Shape: rows, Want: want.DX, Bound: b.DX})
		}
	}
	return list
}

// roundAll returns numbers rounded to a format.
func roundAll(t dtype.DType, x []float64) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(t.Round(float32(v)))
	}
	return y
}

// Check implements Problem.
func (p *normProblem) Check(ctx context.Context, r *Runner) error {
	opt := norm.Options{Config: p.Config}
	if !p.Backward {
		return p.check(ctx, r, "norm", p.forward(), func(c *vk.Cmd, t map[string]vk.Tensor) error {
			x := norm.Tensors{X: t["x"], Residual: t["residual"], W: t["w"], Y: t["y"], Sum: t["sum"], Mean: t["mean"], RStd: t["rstd"]}
			return norm.Forward(c, x, p.Problem, opt)
		})
	}
	bytes, err := norm.Workspace(r.Device().Caps(), p.Problem, p.pass(), opt)
	if err != nil {
		return err
	}
	tensors := append(p.backward(), p.workspace(bytes, 0)...)
	return p.check(ctx, r, "norm", tensors, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt := opt
		opt.Workspace = t[workspaceName].Buffer
		x := norm.Tensors{X: t["s"], W: t["w"], Mean: t["mean"], RStd: t["rstd"]}
		if p.Residual {
			x.X, x.Sum = vk.Tensor{}, t["s"]
		}
		g := norm.Gradients{DY: t["dy"], DSum: t["dsum"], DX: t["dx"], DResidual: t["dresidual"], DW: t["dw"]}
		return norm.Backward(c, x, g, p.Problem, opt)
	})
}

// Smaller implements Problem.
func (p *normProblem) Smaller() (list []Problem) {
	add := func(change func(q *normProblem)) {
		q := *p
		change(&q)
		if !reflect.DeepEqual(&q, p) && q.Validate() == nil && (q.Eps > 0 || q.RMS) {
			list = append(list, &q)
		}
	}
	add(func(q *normProblem) { q.Config = nil })
	sizes := *p
	halves([]*int{&sizes.Rows, &sizes.Cols}, func() { add(func(q *normProblem) { q.Rows, q.Cols = sizes.Rows, sizes.Cols }) })
	add(func(q *normProblem) { q.Residual, q.DResidual = false, false })
	add(func(q *normProblem) { q.DResidual = false })
	add(func(q *normProblem) { q.Save = false })
	add(func(q *normProblem) { q.RMS = true })
	add(func(q *normProblem) { q.Mean, q.Equal = 0, false })
	add(func(q *normProblem) { q.WeightDType = dtype.Float32 })
	add(func(q *normProblem) { q.Eps = 1e-5 })
	p.smaller(func(d kernelData) { add(func(q *normProblem) { q.kernelData = d }) })
	return list
}

// drawNorm draws a problem.
func drawNorm(family, rng *rand.Rand, s Space) Problem {
	p := &normProblem{}
	var ok bool
	if p.DType, ok = s.DType(family, dtype.All()...); !ok {
		return nil
	}
	if family.IntN(2) == 0 {
		p.WeightDType = p.DType
	}
	p.RMS, p.Residual, p.Backward = family.IntN(2) == 0, family.IntN(3) == 0, family.IntN(2) == 0
	if p.Backward {
		p.DResidual = p.Residual && family.IntN(2) == 0
	} else {
		p.Save = family.IntN(4) > 0
	}
	p.kernelData = drawData(family, rng)
	p.Magnitude = min(p.Magnitude, most(p.DType)/p.largest()/4)
	p.Second = min(p.Second, 100) // so that y is within float16
	p.Rows, p.Cols = Size(rng, 2000), Size(rng, 3000)
	if rng.IntN(4) == 0 {
		p.Cols = Size(rng, 20000) // longer than the registers of a workgroup
	}
	wide := rng.IntN(8) == 0 && !s.Soft
	if wide {
		p.Rows, p.Cols = 4000+rng.IntN(8000), Size(rng, 300)
	}
	cost := 40.0
	if wide {
		cost = 10
	}
	within(rng, budget(rng, s), func() float64 { return cost * float64(p.Rows) * float64(p.Cols) }, &p.Rows, &p.Cols)
	p.Config = drawNormConfig(family, s)
	if p.Config != nil && p.Config.Loads > 0 { // no longer than what invocations keep
		team := p.Config.Threads
		if p.Config.SubgroupTeam {
			team = int(kernelCaps(s.Soft).SubgroupSize)
		}
		if longest := p.Config.Loads * team * 16 / p.DType.Size(); p.Cols > longest {
			p.Cols = max(1, longest-rng.IntN(min(longest, 20)))
		}
	}
	size := orOne(p.Magnitude)
	p.Eps = []float64{1e-5, 1e-6, 1e-3, 0}[rng.IntN(4)]
	if p.Eps == 0 && (!p.RMS || p.Kind == zeroKind || p.DType == dtype.Float16) {
		p.Eps = 1e-5
	}
	if p.DType == dtype.Float16 || rng.IntN(2) == 0 {
		p.Eps *= size * size // eps is a part of the variance, and rstd at most 1000 by a deviation
	}
	switch rng.IntN(16) {
	case 0, 1:
		p.Mean = tenTo(rng, 0, 1.5)
		p.Mean = min(p.Mean, math.Max(1, most(p.DType)/p.largest()/size/4))
	case 2:
		p.Equal = p.Eps > 0
	}
	return p
}

// drawNormConfig draws a configuration, or none.
func drawNormConfig(family *rand.Rand, s Space) *norm.Config {
	if family.IntN(2) == 0 {
		return nil
	}
	caps := kernelCaps(s.Soft)
	for range 100 {
		c := norm.Config{
			Threads: 32 << family.IntN(6), SubgroupTeam: family.IntN(2) == 0, Loads: family.IntN(5), Rows: 1 << family.IntN(3),
			Ahead: family.IntN(2) == 0, Groups: 1 + family.IntN(6), Reload: family.IntN(2) == 0,
		}
		if !c.SubgroupTeam {
			c.Rows = 1
		}
		if s.Soft { // lavapipe's time to compile grows with both
			c.Loads, c.Rows = min(c.Loads, 2), min(c.Rows, 2)
		}
		if c.Feasible(caps, norm.Problem{Rows: 1, Cols: 1, WeightDType: dtype.Float32}) == nil {
			return &c
		}
	}
	return nil
}
