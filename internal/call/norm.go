package call

import (
	"math"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/norm/ref"
	"github.com/flashvk/flashvk/pipelines/norm"
	"github.com/flashvk/flashvk/vk/kit"
)

// Norm is a call of norm.Forward or norm.Backward.
type Norm struct {
	norm.Problem
	Direction
	Save      bool // forward: mean and rstd are written
	DResidual bool // backward: the gradient of the residual is written, too
	Config    *norm.Config
	Data
}

// Tidy gives LayerNorm an eps, without which rows of equal elements are NaN.
func (n *Norm) Tidy() {
	if n.Eps == 0 && !n.RMS {
		n.Eps = 1e-5
	}
}

// Tensors implements Call. Gradients by x are about dy * w / deviation.
func (n *Norm) Tensors() []Tensor {
	t, w, rows, row, cols := n.DType, n.WeightDType, []int{n.Rows, n.Cols}, []int{n.Rows}, []int{n.Cols}
	upstream, saved := 1.0, n.Save || n.Backward
	if t == dtype.Float16 {
		upstream = min(1, OrOne(n.Magnitude)/OrOne(n.Second))
	}
	return []Tensor{
		{Name: "x", DType: t, Shape: rows, Scale: n.Magnitude, Main: true, Rows: true, Once: n.Residual},
		{Name: "w", DType: w, Shape: cols, Scale: n.Second},
		{Name: "dy", DType: t, Shape: rows, Scale: upstream, Role: Upstream},
		{Name: "residual", DType: t, Shape: rows, Scale: n.Magnitude, Rows: true, Once: true, Off: !n.Residual},
		{Name: "dsum", DType: t, Shape: rows, Role: Upstream, Off: !n.Residual},
		{Name: "y", DType: t, Shape: rows, Role: Output, Once: true},
		{Name: "sum", DType: t, Shape: rows, Role: Output, Off: !n.Residual},
		{Name: "mean", Shape: row, Role: Output, Off: n.RMS || !saved},
		{Name: "rstd", Shape: row, Role: Output, Off: !saved},
		{Name: "dx", DType: t, Shape: rows, Role: Gradient},
		{Name: "dresidual", DType: t, Shape: rows, Role: Gradient, Off: !n.DResidual || !n.Residual},
		{Name: "dw", DType: w, Shape: cols, Role: Gradient},
		{Name: "b", DType: w, Shape: cols, Scale: n.Second, Once: true, Off: !n.Bias},
		{Name: "db", DType: w, Shape: cols, Role: Gradient, Off: !n.Bias},
	}
}

func (n *Norm) Want(x Values, pass kit.Pass) Outputs {
	p, in, up := n.Problem, ref.Inputs{}, ref.Upstream{}
	Bind(x, &in, &up)
	out := ref.Forward(in, p)
	if pass == kit.Forward {
		return Pair(out, ref.Bounds(out, ref.PlainForward(in, p), p))
	}
	want, plain := ref.Backward(out.Sum, in.W, up, p), ref.PlainBackward(out.Sum, in.W, up, p)
	list := Pair(want, ref.BackwardBounds(want, plain, out.Sum, in.W, up, p))
	list["dresidual"] = list["dx"]
	return list.With(Pair(out, nil))
}

func (n *Norm) Host() Host {
	return hosted(n, n.Problem, norm.Choose, norm.Forward, norm.Backward)
}

// drawNorm draws a normalization of rows.
func drawNorm(p *Norm, family, rng *rand.Rand, s Space) {
	if family.IntN(2) == 0 {
		p.WeightDType = p.DType
	}
	p.RMS, p.Residual, p.Backward = family.IntN(2) == 0, family.IntN(3) == 0, family.IntN(2) == 0
	if p.Backward {
		p.DResidual = p.Residual && family.IntN(2) == 0
	} else {
		p.Save = family.IntN(4) > 0
	}
	p.Data = DrawData(family, rng)
	p.Magnitude = min(p.Magnitude, Most(p.DType)/p.Largest()/4)
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
	Within(rng, s.Budget(rng), func() float64 { return cost * float64(p.Rows) * float64(p.Cols) }, &p.Rows, &p.Cols)
	p.Config = drawNormConfig(family, s)
	p.Bias = chance(family, 3)
	if p.Config != nil && p.Config.Loads > 0 { // no longer than what invocations keep
		team := p.Config.Threads
		if p.Config.SubgroupTeam {
			team = int(TypicalCaps(s.Soft).SubgroupSize)
		}
		if longest := p.Config.Loads * team * 16 / p.DType.Size(); p.Cols > longest {
			p.Cols = max(1, longest-rng.IntN(min(longest, 20)))
		}
	}
	size := OrOne(p.Magnitude)
	p.Eps = []float64{1e-5, 1e-6, 1e-3, 0}[rng.IntN(4)]
	if p.Eps == 0 && (!p.RMS || p.Kind == ZeroKind || p.DType == dtype.Float16) {
		p.Eps = 1e-5
	}
	if p.DType == dtype.Float16 || rng.IntN(2) == 0 {
		p.Eps *= size * size // eps is a part of the variance, and rstd at most 1000 by a deviation
	}
	switch rng.IntN(16) {
	case 0, 1:
		p.Mean = TenTo(rng, 0, 1.5)
		p.Mean = min(p.Mean, math.Max(1, Most(p.DType)/p.Largest()/size/4))
	case 2:
		p.Equal = p.Eps > 0
	}
}

// drawNormConfig draws a configuration, or none.
func drawNormConfig(family *rand.Rand, s Space) *norm.Config {
	if family.IntN(2) == 0 {
		return nil
	}
	caps := TypicalCaps(s.Soft)
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
