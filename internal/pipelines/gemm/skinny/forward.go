package skinny

import (
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// ChooseForward returns what Forward runs for p and W with that many columns. Its error wraps
// vk.ErrUnsupported if Forward does not handle them.
func ChooseForward(caps *vk.Caps, p engine.Problem, columns int, o engine.Options) (plan Plan, err error) {
	if p.Activation == engine.SiLUKeep {
		p.Activation = engine.SiLU // the same choice; SiLUKeep also writes X
	}
	err = plan.choose(caps, p, columns, &o, func(c *engine.Config) int { return forwardBytes(caps, c, &p, columns) }, forwardTable, true)
	if err != nil {
		return plan, err
	}
	_, blockN := plan.Config.Block(caps, p.DType)
	plan.take((p.N+blockN-1)/blockN*plan.Config.SubgroupsN, p.Batches()*p.M, columns)
	return plan, nil
}

// forwardBytes is the shared memory of w in lib/gemm_narrow.glsl.
func forwardBytes(caps *vk.Caps, c *engine.Config, p *engine.Problem, columns int) int {
	_, blockN := c.Block(caps, p.DType)
	return 4 * blockN * columns
}

// Forward computes products of a batch that are multiplied again, by matrices of a few columns,
//
//	y = silu(Alpha * op(A) * op(B)) * w
//
// in one kernel: a workgroup multiplies its block by the matching rows of w.
//
// Tensors have any strides and a contiguous last axis. P.Activation is SiLU, or SiLUKeep, which
// writes Pre, too; its offset and strides are fastest as multiples of 4 elements. Y and Pre have
// memory of their own.
//
// Forward records into c and returns, as gemm.Forward does. It returns an error that wraps
// vk.ErrUnsupported if p.DType is float32, the device has no matrices of it, w has more than 8
// columns, or o forces another path. It returns an error naming the argument if a tensor does not
// fit.
func Forward(c *vk.Cmd, t Tensors, columns int, p engine.Problem, o engine.Options) (err error) {
	defer c.Keep(&err)
	plan, err := ChooseForward(c.Device().Caps(), p, columns, o)
	if err != nil {
		return err
	}
	yShape := []int{p.Batches(), p.M, columns}
	err = argument.Check("gemm", []argument.Argument{
		argument.New("a", t.A, true, p.DType, p.AShape()),
		argument.New("b", t.B, true, p.DType, p.BShape()),
		argument.New("w", t.W, true, p.DType, []int{p.Batches(), p.N, columns}),
	}, []argument.Argument{
		argument.New("y", t.Y, true, p.Out, yShape),
		argument.New("pre", t.Pre, p.HasX(), p.DType, p.CShape()),
	})
	if err != nil {
		return err
	}
	args := engine.Args{C: t.Y, A: t.A, B: t.B, R: t.W, X: t.Pre}
	memory, at, err := plan.memory.Workspace(c, &o, &args)
	if err != nil {
		return err
	}
	list := plan.memory.Pack(&args, memory, at)
	if plan.Config.PackB {
		if p.HasX() {
			if args.Deal, err = engine.DealFor(c.Device(), p.DType, &plan.Config, t.Pre); err != nil {
				return err
			}
		}
		list = steps.Together(list, steps.List{plan.memory.Fragment(c.Device().Caps(), &args, p, memory, at)})
	}
	args.C = plan.partial(memory, at, p.M, columns, p)
	args.More = 2 * float64(p.N) * float64(columns)
	return append(list, plan.steps("gemm_narrow", args, p, t.Y, args.C)...).Record(c)
}
