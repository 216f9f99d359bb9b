package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// newNarrowBackwardPlan returns the plan for p and W of some columns. An element of dw has a
// sum for each block of rows.
func newNarrowBackwardPlan(caps *vk.Caps, p Problem, columns int, opt *Options) (plan narrowPlan, err error) {
	err = plan.choose(caps, p, columns, opt, func(c *Config) int { return narrowBackwardBytes(caps, c, &p, columns) })
	if err != nil {
		return plan, err
	}
	blockM, _ := plan.config.Block(caps, p.DType)
	plan.take((p.M+blockM-1)/blockM, p.Batches()*p.N, columns)
	return plan, nil
}

// narrowBackwardBytes is the shared memory of dy and w in lib/gemm_narrow_bwd.glsl.
func narrowBackwardBytes(caps *vk.Caps, c *Config, p *Problem, columns int) int {
	blockM, blockN := c.Block(caps, p.DType)
	return 4 * columns * (blockM + blockN)
}

// NarrowBackwardWorkspace returns the bytes of device memory that NarrowBackward takes with
// the same options, for w of some columns. Its error wraps ErrUnsupported if NarrowBackward
// does not handle them.
func NarrowBackwardWorkspace(caps *vk.Caps, p Problem, columns int, opt Options) (int64, error) {
	plan, err := newNarrowBackwardPlan(caps, p, columns, &opt)
	return plan.memory.Bytes, err
}

// NarrowBackwardConfig returns the configuration that NarrowBackward takes.
func NarrowBackwardConfig(caps *vk.Caps, p Problem, columns int, opt Options) (Config, error) {
	plan, err := newNarrowBackwardPlan(caps, p, columns, &opt)
	return plan.config, err
}

// NarrowBackward computes gradients of what Narrow does, given that of y:
//
//	pre  = Alpha * op(A) * op(B)
//	dpre = (dy * wᵀ) ∘ silu'(pre)
//	dw   = silu(pre)ᵀ * dy
//
// in one kernel that writes dpre, but neither pre nor silu(pre), which are not rounded: a
// workgroup adds up dw over its rows, and a second kernel over workgroups, always in the same
// order. The gradients by op(A) and op(B) are products with dpre.
//
// Dpre is (batch, m, n), of p.DType, dw is (batch, n, columns), of p.Out, dy is (batch, m,
// columns), of p.DType, and a, b and w are as in Narrow. Dpre's offset and strides are
// multiples of 8 elements, and its rows get zeros up to the next such multiple. Dpre and dw
// have memory of their own.
//
// Records, and returns errors, as Narrow does.
func NarrowBackward(c *vk.Cmd, dpre, dw, dy, a, b, w vk.Tensor, columns int, p Problem, opt Options) (err error) {
	defer c.Keep(&err)
	s, err := NarrowBackwardSteps(c, dpre, dw, dy, a, b, w, columns, p, opt)
	if err != nil {
		return err
	}
	return s.Record(c)
}

// NarrowBackwardSteps returns what NarrowBackward records, as MultiplySteps does. The product
// is two steps, of which the first writes dpre and the second dw.
func NarrowBackwardSteps(c *vk.Cmd, dpre, dw, dy, a, b, w vk.Tensor, columns int, p Problem, opt Options) (s Steps, err error) {
	plan, err := newNarrowBackwardPlan(c.Device().Caps(), p, columns, &opt)
	if err != nil {
		return s, err
	}
	err = checkGradients(dpre, dw, dy, w, columns, p,
		argument.New("a", a, true, p.DType, p.AShape()),
		argument.New("b", b, true, p.DType, p.BShape()),
	)
	if err != nil {
		return s, err
	}
	args := Args{C: dpre, A: a, B: b, R: w, X: dy}
	memory, at, err := plan.memory.Workspace(c, &opt, &args)
	if err != nil {
		return s, err
	}
	args.Slice()
	s.Copies = plan.memory.Pack(&args, memory, at)
	args.S = plan.partial(memory, at, p.N, columns, p)
	args.More = 4 * float64(p.N) * float64(columns)
	s.Product = plan.steps("gemm_narrow_bwd", args, p, dw.Narrow(), args.S)
	return s, nil
}

// checkGradients checks the tensors of a kernel that makes dpre and dw of dy, w of some columns
// and inputs of its own. It fills rows of dpre with zeros up to the next multiple of 8 elements.
func checkGradients(dpre, dw, dy, w vk.Tensor, columns int, p Problem, own ...argument.Argument) error {
	wShape := []int{p.Batches(), p.N, columns}
	inputs := append([]argument.Argument{argument.New("dy", dy, true, p.DType, []int{p.Batches(), p.M, columns})}, own...)
	err := argument.Check("gemm", append(inputs, argument.New("w", w, true, p.DType, wShape)), []argument.Argument{
		argument.New("dpre", dpre, true, p.DType, p.CShape()),
		argument.New("dw", dw, true, p.Out, wShape),
	})
	if err != nil {
		return err
	}
	if !Aligned(8, dpre) {
		return fmt.Errorf("gemm: dpre has offset %d and strides %v: not multiples of 8 elements", dpre.Offset, dpre.Strides)
	}
	if end := 2 * int64((dpre.Offset+dpre.Span()+7)/8*8); end > dpre.Buffer.Bytes() {
		return fmt.Errorf("gemm: dpre with its zeros ends at byte %d of a buffer of %d", end, dpre.Buffer.Bytes())
	}
	return nil
}
