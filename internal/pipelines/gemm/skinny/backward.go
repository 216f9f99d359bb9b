package skinny

import (
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// ChooseBackward returns what Backward runs for p and W with that many columns. An element of dw
// has a partial sum for each block of rows. Its error wraps vk.ErrUnsupported if Backward does
// not handle them.
func ChooseBackward(caps *vk.Caps, p engine.Problem, columns int, o engine.Options) (plan Plan, err error) {
	err = plan.choose(caps, p, columns, &o, func(c *engine.Config) int { return backwardBytes(caps, c, &p, columns) }, backwardTable, false)
	if err != nil {
		return plan, err
	}
	blockM, _ := plan.Config.Block(caps, p.DType)
	plan.take((p.M+blockM-1)/blockM, p.Batches()*p.N, columns)
	return plan, nil
}

// backwardBytes is the shared memory of dy and w in lib/gemm_narrow_bwd.glsl.
func backwardBytes(caps *vk.Caps, c *engine.Config, p *engine.Problem, columns int) int {
	blockM, blockN := c.Block(caps, p.DType)
	return 4 * columns * (blockM + blockN)
}

// Backward computes the gradients of Forward from that by y:
//
//	pre  = Alpha * op(A) * op(B)
//	dpre = (dy * wᵀ) ∘ silu'(pre)
//	dw   = silu(pre)ᵀ * dy
//
// One kernel writes dpre. It writes neither pre nor silu(pre), and does not round them. A
// workgroup adds up dw over its rows. The gradients by op(A) and op(B) are products with dpre.
//
// The offset and strides of DPre are multiples of 8 elements, and its rows get zeros up to the
// next such multiple. DPre and DW have memory of their own.
//
// Backward records into c and returns errors as Forward does.
func Backward(c *vk.Cmd, t Tensors, columns int, p engine.Problem, o engine.Options) (err error) {
	defer c.Keep(&err)
	s, err := BackwardSteps(c, t, columns, p, o)
	if err != nil {
		return err
	}
	return s.Record(c)
}

// BackwardSteps returns what Backward records, as engine.MultiplySteps does. The product is two
// steps: the first writes dpre, the second dw.
func BackwardSteps(c *vk.Cmd, t Tensors, columns int, p engine.Problem, o engine.Options) (s engine.Steps, err error) {
	plan, err := ChooseBackward(c.Device().Caps(), p, columns, o)
	if err != nil {
		return s, err
	}
	err = checkGradients(t, columns, p,
		argument.New("a", t.A, true, p.DType, p.AShape()),
		argument.New("b", t.B, true, p.DType, p.BShape()),
	)
	if err != nil {
		return s, err
	}
	args := engine.Args{C: t.DPre, A: t.A, B: t.B, R: t.W, X: t.DY}
	memory, at, err := plan.memory.Workspace(c, &o, &args)
	if err != nil {
		return s, err
	}
	args.Slice()
	s.Copies = plan.memory.Pack(&args, memory, at)
	args.S = plan.partial(memory, at, p.N, columns, p)
	args.More = 4 * float64(p.N) * float64(columns)
	s.Product = plan.steps("gemm_narrow_bwd", args, p, t.DW.Narrow(), args.S)
	return s, nil
}
