package trial

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/fused"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// mlpKernel draws two-layer perceptrons.
func mlpKernel() Kernel {
	return Kernel{Name: "mlp", Weight: 2, New: func() Problem { return &mlpProblem{} }, Draw: drawMLP}
}

// groupedKernel draws perceptrons that share their input, and calls of the kernels of package
// skinny that compute their outputs and gradients.
func groupedKernel() Kernel {
	return Kernel{Name: "grouped", Weight: 3, New: func() Problem { return &mlpProblem{} }, Draw: drawGrouped}
}

// mlpProblem is a call of mlp.Forward or mlp.Backward. With Skinny it is a call of a kernel of
// package skinny.
type mlpProblem struct {
	mlp.Problem
	Impl        string
	Backward    bool
	Fused       mlp.Fused
	FusedConfig string // "": what the table has
	AtATime     int    // heads
	Products    bool

	Skinny         bool   `json:"Narrow"` // as records have it
	Config         string // of Skinny; "": the table's
	TransA, TransB bool
	Alpha          float64 // a power of two
	kernelData
}

// String implements Problem.
func (p *mlpProblem) String() string {
	s := fmt.Sprintf("%v, backward=%v keep=%v ", p.Problem, p.Backward, p.Keep)
	if p.Heads == 0 {
		return s + fmt.Sprintf("fused=%v %s (%s)", p.Fused, p.Impl, p.FusedConfig)
	}
	return s + fmt.Sprintf("skinny=%v at_a_time=%d products=%v %s (%s)", p.Skinny, p.AtATime, p.Products, p.Impl, p.Config)
}

// options returns the options of a call of package mlp.
func (p *mlpProblem) options() (opt mlp.Options, err error) {
	if opt.Impl, err = engine.ParseImpl(p.Impl); err != nil {
		return opt, err
	}
	opt.Fused, opt.HeadsAtATime, opt.Products = p.Fused, p.AtATime, p.Products
	opt.FusedConfig = p.FusedConfig
	return opt, nil
}

// passOf returns the direction.
func passOf(backward bool) kit.Pass {
	if backward {
		return kit.Backward
	}
	return kit.Forward
}

// y returns the format of y.
func (p *mlpProblem) y() dtype.DType {
	if p.Float32 {
		return dtype.Float32
	}
	return p.DType
}

// bytes returns the workspace.
func (p *mlpProblem) bytes(caps *vk.Caps) (int64, error) {
	if p.Skinny {
		return p.skinnyBytes(caps)
	}
	opt, err := p.options()
	if err != nil {
		return 0, err
	}
	return mlp.Workspace(caps, p.Problem, passOf(p.Backward), opt)
}

// Supports implements Problem.
func (p *mlpProblem) Supports(caps *vk.Caps) error {
	_, err := p.bytes(caps)
	return err
}

// Check implements Problem.
func (p *mlpProblem) Check(ctx context.Context, r *Runner) error {
	bytes, err := p.bytes(r.Device().Caps())
	if err != nil {
		return err
	}
	of := perceptronCall{p: p.Problem, data: &p.kernelData, alpha: p.Alpha, y: p.y(), backward: p.Backward}
	list := of.tensors()
	if p.Skinny {
		return p.checkSkinny(ctx, r, list, bytes)
	}
	opt, err := p.options()
	if err != nil {
		return err
	}
	list = append(without(list, "dpre"), p.WorkspaceTensor(bytes, 0)...)
	return p.check(ctx, r, "mlp", list, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt := opt
		opt.Workspace = t[call.WorkspaceName].Buffer
		x := mlp.Tensors{X: t["x"], W1: t["w1"], W2: t["w2"], Y: t["y"], Pre: t["pre"], Hidden: t["hidden"]}
		if p.Backward {
			return mlp.Backward(c, x, mlp.Gradients{DY: t["dy"], DX: t["dx"], DW1: t["dw1"], DW2: t["dw2"]}, p.Problem, opt)
		}
		return mlp.Forward(c, x, p.Problem, opt)
	})
}

// Smaller implements Problem.
func (p *mlpProblem) Smaller() (list []Problem) {
	add := func(change func(q *mlpProblem)) {
		q := *p
		change(&q)
		if q != *p && q.Validate() == nil {
			list = append(list, &q)
		}
	}
	add(func(q *mlpProblem) { q.FusedConfig = "" })
	add(func(q *mlpProblem) { q.Config = "" })
	sizes := *p
	halves([]*int{&sizes.Heads, &sizes.Tokens, &sizes.In, &sizes.Hidden, &sizes.Out}, func() {
		add(func(q *mlpProblem) {
			q.Heads, q.Tokens, q.In, q.Hidden, q.Out = sizes.Heads, sizes.Tokens, sizes.In, sizes.Hidden, sizes.Out
		})
	})
	add(func(q *mlpProblem) { q.AtATime = 0 })
	add(func(q *mlpProblem) { q.Keep = mlp.KeepNothing })
	add(func(q *mlpProblem) { q.Keep = min(q.Keep, mlp.KeepPre) })
	add(func(q *mlpProblem) { q.Products = false })
	add(func(q *mlpProblem) { q.Float32 = false })
	add(func(q *mlpProblem) { q.TransA = false })
	add(func(q *mlpProblem) { q.TransB = false })
	add(func(q *mlpProblem) { q.Alpha = 0 })
	add(func(q *mlpProblem) { q.Grad = 0 })
	p.smaller(func(d kernelData) { add(func(q *mlpProblem) { q.kernelData = d }) })
	return list
}

// drawMLP draws a problem.
func drawMLP(family, rng *rand.Rand, s Space) Problem {
	p := &mlpProblem{Backward: family.IntN(2) == 0}
	keep := mlp.Keeps()[family.IntN(3)]
	var ok bool
	if p.Impl, ok = s.Impl(family, gemmImpls()...); !ok {
		return nil
	}
	var config *fused.Config
	outputs := 1 << 20
	if !p.Backward && p.Impl != "scalar" && family.IntN(2) == 0 {
		keep, p.Fused, outputs = mlp.KeepNothing, mlp.FusedOn, 512
		if family.IntN(4) > 0 {
			config = drawFusedConfig(family, s)
		}
	}
	if p.Problem, ok = drawPerceptron(family, rng, s, 1, outputs, p.Backward, &p.kernelData); !ok {
		return nil
	}
	p.Heads, p.Keep = 0, keep
	p.Impl = softImpl(family, s, p.Impl, p.DType)
	if p.Fused == mlp.FusedOn && p.DType == dtype.Float32 {
		p.Fused, config = mlp.FusedOff, nil // it has no such kernel
	}
	if p.Fused == mlp.FusedOn {
		columns := 8 * 4 * 16 // of what the table has
		size := 16
		if s.Soft {
			size, columns = 8, 2*2*8
		}
		if config != nil {
			columns = config.Subgroups * config.TilesN * size
			p.FusedConfig = config.String()
		}
		p.Out = min(p.Out, columns)
	}
	return p
}

// drawFusedConfig draws a configuration of one kernel, or none.
func drawFusedConfig(family *rand.Rand, s Space) *fused.Config {
	caps, size, subgroups, tiles := kernelCaps(s.Soft), 16, 8, 3
	if s.Soft {
		size, subgroups, tiles = 8, 3, 2
	}
	for range 300 {
		c := fused.Config{
			Subgroups: 1 + family.IntN(subgroups), TilesM: 1 + family.IntN(tiles), TilesN: 1 + family.IntN(tiles+1),
			HiddenM: 1 + family.IntN(tiles), HiddenN: 1 + family.IntN(2), LoadAhead: family.IntN(2), Double: family.IntN(2) == 0,
		}
		c.Ahead = c.TilesN * c.HiddenN * (1 + family.IntN(2))
		c.Shared = c.Ahead / c.HiddenN * family.IntN(4)
		if family.IntN(3) == 0 {
			c.Splits = 2 + family.IntN(3)
			c.Rows = c.TilesM * size * family.IntN(3)
		}
		if c.Feasible(caps, fused.Problem{M: 64, In: 64, Hidden: 64, N: 1, DType: dtype.Float16, Out: dtype.Float16}) == nil {
			return &c
		}
	}
	return nil
}
