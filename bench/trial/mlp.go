package trial

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/pipelines/gemm"
	"github.com/flashvk/flashvk/pipelines/grouped"
	"github.com/flashvk/flashvk/pipelines/kerneltest"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
)

// mlpKernel draws two-layer perceptrons.
func mlpKernel() Kernel {
	return Kernel{Name: "mlp", Weight: 2, New: func() Problem { return &mlpProblem{} }, Draw: drawMLP}
}

// mlpProblem is a call of mlp.Forward or mlp.Backward.
type mlpProblem struct {
	mlp.Problem
	Impl        string
	Fused       mlp.Fused
	FusedConfig string // "": what the table has
	Backward    bool
	Keep        mlp.Keep
	kernelData
}

// String implements Problem.
func (p *mlpProblem) String() string {
	return fmt.Sprintf("%v, backward=%v keep=%v fused=%v %s (%s)", p.Problem, p.Backward, p.Keep, p.Fused, p.Impl, p.FusedConfig)
}

// options returns those of the call, without tensors.
func (p *mlpProblem) options() (opt mlp.Options, err error) {
	if opt.Impl, err = gemm.ParseImpl(p.Impl); err != nil {
		return opt, err
	}
	opt.Fused = p.Fused
	if p.FusedConfig != "" {
		var c gemm.PairConfig
		c, err = gemm.ParsePairConfig(p.FusedConfig)
		opt.FusedConfig = &c
	}
	return opt, err
}

// bytes returns the workspace.
func (p *mlpProblem) bytes(caps *vk.Caps) (int64, error) {
	opt, err := p.options()
	if err != nil {
		return 0, err
	}
	if p.Backward {
		return mlp.BackwardWorkspace(caps, p.Problem, opt, p.Keep)
	}
	return mlp.ForwardWorkspace(caps, p.Problem, opt, p.Keep)
}

// Supports implements Problem.
func (p *mlpProblem) Supports(caps *vk.Caps) error {
	_, err := p.bytes(caps)
	return err
}

// Check implements Problem.
func (p *mlpProblem) Check(ctx context.Context, r *Runner) error {
	opt, err := p.options()
	if err != nil {
		return err
	}
	bytes, err := p.bytes(r.Device().Caps())
	if err != nil {
		return err
	}
	call := perceptronCall{
		p:    grouped.Problem{Tokens: p.Tokens, Heads: 1, In: p.In, Hidden: p.Hidden, Out: p.Out, DType: p.DType, Grad: p.Grad},
		data: &p.kernelData, y: p.DType, backward: p.Backward, pre: p.Keep >= mlp.KeepPre, hidden: p.Keep == mlp.KeepHidden,
	}
	list := without(call.tensors(), "dpre")
	for i := range list { // there is no axis of heads
		list[i].Shape = oneHead(&list[i])
	}
	list = append(list, p.workspace(bytes, 0)...)
	return p.check(ctx, r, "mlp", list, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt := opt
		opt.Pre, opt.Hidden, opt.Workspace = t["pre"], t["hidden"], t[workspaceName].Buffer
		if p.Backward {
			return mlp.Backward(c, t["dx"], t["dw1"], t["dw2"], t["dy"], t["x"], t["w1"], t["w2"], p.Problem, opt)
		}
		return mlp.Forward(c, t["y"], t["x"], t["w1"], t["w2"], p.Problem, opt)
	})
}

// oneHead returns the shape without the axis of heads, which is the first of weights and the second
// of the rest.
func oneHead(t *kerneltest.Tensor) []int {
	if len(t.Shape) < 3 {
		return t.Shape
	}
	switch t.Name {
	case "w1", "w2", "dw1", "dw2":
		return t.Shape[1:]
	}
	return []int{t.Shape[0], t.Shape[2]}
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
	sizes := *p
	halves([]*int{&sizes.Tokens, &sizes.In, &sizes.Hidden, &sizes.Out}, func() {
		add(func(q *mlpProblem) { q.Tokens, q.In, q.Hidden, q.Out = sizes.Tokens, sizes.In, sizes.Hidden, sizes.Out })
	})
	add(func(q *mlpProblem) { q.Keep = mlp.KeepNothing })
	add(func(q *mlpProblem) { q.Keep = min(q.Keep, mlp.KeepPre) })
	add(func(q *mlpProblem) { q.Grad = q.DType })
	p.smaller(func(d kernelData) { add(func(q *mlpProblem) { q.kernelData = d }) })
	return list
}

// drawMLP draws a problem.
func drawMLP(family, rng *rand.Rand, s Space) Problem {
	p := &mlpProblem{Backward: family.IntN(2) == 0, Keep: mlp.Keeps()[family.IntN(3)]}
	var ok bool
	if p.Impl, ok = s.Impl(family, gemmImpls()...); !ok {
		return nil
	}
	var config *gemm.PairConfig
	outputs := 1 << 20
	if !p.Backward && p.Impl != "scalar" && family.IntN(2) == 0 {
		p.Keep, p.Fused, outputs = mlp.KeepNothing, mlp.FusedOn, 512
		if family.IntN(4) > 0 {
			config = drawPairConfig(family, s)
		}
	}
	x, ok := drawPerceptron(family, rng, s, 1, outputs, p.Backward, &p.kernelData)
	if !ok {
		return nil
	}
	p.Problem = mlp.Problem{Tokens: x.Tokens, In: x.In, Hidden: x.Hidden, Out: x.Out, DType: x.DType, Grad: x.Grad}
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

// drawPairConfig draws a configuration of gemm.Pair, or none.
func drawPairConfig(family *rand.Rand, s Space) *gemm.PairConfig {
	caps, size, subgroups, tiles := kernelCaps(s.Soft), 16, 8, 3
	if s.Soft {
		size, subgroups, tiles = 8, 3, 2
	}
	for range 300 {
		c := gemm.PairConfig{
			Subgroups: 1 + family.IntN(subgroups), TilesM: 1 + family.IntN(tiles), TilesN: 1 + family.IntN(tiles+1),
			HiddenM: 1 + family.IntN(tiles), HiddenN: 1 + family.IntN(2), Fence: family.IntN(2), Double: family.IntN(2) == 0,
		}
		c.Ahead = c.TilesN * c.HiddenN * (1 + family.IntN(2))
		c.Shared = c.Ahead / c.HiddenN * family.IntN(4)
		if family.IntN(3) == 0 {
			c.Splits = 2 + family.IntN(3)
			c.Rows = c.TilesM * size * family.IntN(3)
		}
		if c.Feasible(caps, gemm.PairProblem{M: 64, In: 64, Hidden: 64, N: 1, DType: dtype.Float16, Out: dtype.Float16}) == nil {
			return &c
		}
	}
	return nil
}
