package trial

import (
	"context"
	"math/rand/v2"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/call"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
)

// product returns the problem of a kernel of package skinny, with its options.
func (p *mlpProblem) product() (x engine.Problem, opt engine.Options, err error) {
	if opt.Impl, err = engine.ParseImpl(p.Impl); err != nil {
		return x, opt, err
	}
	if opt.Config, err = parseGemmConfig(p.Config); err != nil {
		return x, opt, err
	}
	x = engine.Problem{Batch: p.Heads, M: p.Tokens, N: p.Hidden, K: p.In, DType: p.DType, Out: p.y(), TransA: p.TransA, TransB: p.TransB, Alpha: p.Alpha, Activation: engine.SiLU}
	switch {
	case p.Backward && p.Keep == mlp.KeepPre:
		x = engine.Problem{Batch: p.Heads, M: p.Tokens, N: p.Hidden, K: p.Out, TransB: true, DType: p.DType, Out: p.GradDType(), Activation: engine.TimesDSiLU}
	case p.Backward:
		x.Out = p.GradDType()
	case p.Keep == mlp.KeepPre:
		x.Activation = engine.SiLUKeep
	}
	return x, opt, nil
}

// skinnyBytes returns the bytes of workspace of a kernel of package skinny.
func (p *mlpProblem) skinnyBytes(caps *vk.Caps) (int64, error) {
	x, opt, err := p.product()
	switch {
	case err != nil:
		return 0, err
	case p.Backward && p.Keep == mlp.KeepPre:
		plan, err := skinny.ChooseKept(caps, x)
		return plan.Workspace(), err
	case p.Backward:
		plan, err := skinny.ChooseBackward(caps, x, p.Out, opt)
		return plan.Workspace(), err
	}
	plan, err := skinny.ChooseForward(caps, x, p.Out, opt)
	return plan.Workspace(), err
}

// checkSkinny runs a kernel of package skinny. All heads share x; tensors by token have the heads
// as their second axis.
func (p *mlpProblem) checkSkinny(ctx context.Context, r *Runner, list []guard.Tensor, bytes int64) error {
	x, opt, err := p.product()
	if err != nil {
		return err
	}
	if p.Backward {
		list = only(list, "x", "w1", "w2", "dy", "pre", "dpre", "dw2")
	}
	padded := (p.Hidden + 7) / 8 * 8
	for i := range list {
		switch t := &list[i]; {
		case t.Name == "x" && p.TransA:
			t.Values, t.Shape = turn(t.Values, p.Tokens, p.In), []int{p.In, p.Tokens}
		case t.Name == "w1" && p.TransB:
			t.Values, t.Shape = turn(t.Values, p.In, p.Hidden), []int{p.Heads, p.Hidden, p.In}
		case t.Name == "dpre":
			zeroRows(t, padded)
			rng := p.Rand(40)
			t.Place = &guard.Place{Offset: 8 * rng.IntN(9), RowGap: 8 * rng.IntN(3), MatrixGap: 8 * rng.IntN(3)}
		}
	}
	if p.Backward && p.Keep == mlp.KeepPre {
		list = without(without(list, "x"), "w1")
	}
	list = append(list, p.WorkspaceTensor(bytes, workspaceOffset)...)
	return p.check(ctx, r, "skinny", list, func(c *vk.Cmd, t map[string]vk.Tensor) error {
		opt := opt
		if w, ok := t[call.WorkspaceName]; ok {
			opt.Workspace, opt.WorkspaceOffset = w.Buffer, workspaceOffset
		}
		heads := func(x vk.Tensor) vk.Tensor {
			if !x.IsZero() {
				x = x.Permute(1, 0, 2)
			}
			return x
		}
		a := t["x"]
		if !a.IsZero() {
			a.Shape, a.Strides = []int{p.Heads, a.Shape[0], a.Shape[1]}, []int{0, a.Strides[0], 1}
		}
		if !p.Backward {
			return skinny.Forward(c, skinny.Tensors{A: a, B: t["w1"], W: t["w2"], Y: heads(t["y"]), Pre: heads(t["pre"])}, p.Out, x, opt)
		}
		dpre := heads(t["dpre"])
		dpre.Shape = []int{p.Heads, p.Tokens, p.Hidden}
		if p.Keep == mlp.KeepPre {
			return skinny.BackwardKept(c, skinny.Tensors{W: t["w2"], Pre: heads(t["pre"]), DY: heads(t["dy"]), DPre: dpre, DW: t["dw2"]}, x, opt)
		}
		tensors := skinny.Tensors{A: a, B: t["w1"], W: t["w2"], DY: heads(t["dy"]), DPre: dpre, DW: t["dw2"]}
		return skinny.Backward(c, tensors, p.Out, x, opt)
	})
}

// turn returns matrices (rows, cols) transposed.
func turn(x []float64, rows, cols int) []float64 {
	y := make([]float64, len(x))
	for m := 0; m < len(x); m += rows * cols {
		for r := range rows {
			for c := range cols {
				y[m+c*rows+r] = x[m+r*cols+c]
			}
		}
	}
	return y
}

// zeroRows adds zeros to the rows of an output.
func zeroRows(t *guard.Tensor, padded int) {
	cols := t.Shape[2]
	if t.Sample != nil {
		for i, at := range t.Sample {
			t.Sample[i] = at/cols*padded + at%cols
		}
	}
	var want []float64
	var sample []int
	for at := 0; at < len(t.Want); at += cols {
		want = append(append(want, t.Want[at:at+cols]...), make([]float64, padded-cols)...)
		if t.Sample != nil {
			for c := range padded {
				sample = append(sample, t.Sample[at]+c)
			}
		}
	}
	t.Want, t.Sample, t.Shape = want, sample, []int{t.Shape[0], t.Shape[1], padded}
}

// drawGrouped draws a problem.
func drawGrouped(family, rng *rand.Rand, s Space) Problem {
	p := &mlpProblem{Backward: family.IntN(2) == 0}
	keep := mlp.Keeps()[family.IntN(2)]
	var ok bool
	if p.Impl, ok = s.Impl(family, gemmImpls()...); !ok {
		return nil
	}
	p.Skinny = p.Impl != "scalar" && family.IntN(2) == 0
	outputs := 8
	if !p.Skinny && family.IntN(3) == 0 {
		outputs = 60
	}
	if p.Skinny {
		half := s
		half.DTypes = intersect(s.DTypes, dtype.Float16, dtype.BFloat16)
		if len(half.DTypes) > 0 {
			s = half
		}
	}
	if p.Problem, ok = drawPerceptron(family, rng, s, 1+rng.IntN(6), outputs, p.Backward, &p.kernelData); !ok {
		return nil
	}
	p.Keep = keep
	if !p.Skinny {
		p.Impl = softImpl(family, s, p.Impl, p.DType)
	}
	if outputs == 8 {
		p.Out = 1 + family.IntN(8) // kernels are compiled for it
	}
	p.Float32 = !p.Backward && family.IntN(3) == 0
	if !p.Skinny {
		p.Products = family.IntN(3) == 0
		p.AtATime = rng.IntN(4)
		return p
	}
	p.Config = drawSkinnyConfig(family, s, p)
	if !p.Backward || p.Keep == mlp.KeepNothing {
		p.TransA, p.TransB = family.IntN(3) == 0, family.IntN(3) == 0
		p.Alpha = []float64{0, 0, 0.5, 2, -1}[rng.IntN(5)]
	}
	return p
}

// intersect returns the formats of list that are also in some; nil is all.
func intersect(some []dtype.DType, list ...dtype.DType) (both []dtype.DType) {
	for _, t := range list {
		for _, u := range some {
			if t == u {
				both = append(both, t)
			}
		}
	}
	if some == nil {
		return list
	}
	return both
}

// drawSkinnyConfig draws a configuration, or none.
func drawSkinnyConfig(family *rand.Rand, s Space, p *mlpProblem) string {
	if family.IntN(3) == 0 || p.Backward && p.Keep == mlp.KeepPre || p.Impl == "auto" {
		return ""
	}
	caps := kernelCaps(s.Soft)
	for range 100 {
		c := engine.Config{}
		drawMatrixTiles(family, s, &c)
		c.AlignRows = family.IntN(2) == 0
		if c.PackB = !p.Backward && family.IntN(2) == 0; c.PackB {
			c.BlockK = int(caps.CoopMatShapes[0].N) * 8 / (1 + family.IntN(2))
		}
		q := *p
		if q.Config = c.String(); q.DType == dtype.BFloat16 && s.Soft {
			q.DType = dtype.Float16
		}
		if q.Supports(caps) == nil {
			return q.Config
		}
	}
	return ""
}
