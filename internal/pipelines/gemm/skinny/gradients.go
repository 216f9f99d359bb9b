package skinny

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
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

// backwardBytes is the shared memory of dy and w in lib/gemm_skinny_bwd.glsl.
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
// Backward returns the steps to record, as engine.MultiplySteps does, and errors as Forward does.
// The product is two steps: the first writes dpre, the second dw.
func Backward(c *vk.Cmd, t Tensors, columns int, p engine.Problem, o engine.Options) (s engine.Steps, err error) {
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
	s.Product = plan.steps("gemm_skinny_bwd", args, p, t.DW.Narrow(), args.S)
	return s, nil
}

// keptSpec is the specialization of gemm_skinny_dsilu.comp.
type keptSpec struct {
	WorkgroupSize uint32              `glsl:"WORKGROUP_SIZE"`
	BlockM        uint32              `glsl:"BLOCK_M"`
	BlockN        uint32              `glsl:"BLOCK_N"`
	AAligned      bool                `glsl:"A_ALIGNED"`
	Columns       uint32              `glsl:"COLUMNS"`
	Epilogue      engine.EpilogueSpec `glsl:"epilogue"`
}

// Blocks of gemm_skinny_dsilu. Workgroups are small, so that a multiprocessor has many. A row of
// a block is two whole lines of a cache. Blocks are high, since each has sums of dw: 256 rows of
// 2 bytes have 16 bytes of them for three columns.
const (
	keptThreads = 128
	keptRows    = 256
	keptColumns = 128
)

// ChooseKept returns what BackwardKept runs for p. An element of dw has a partial sum for each
// block of rows. Its error wraps vk.ErrUnsupported if BackwardKept does not handle p. There is no
// Config.
func ChooseKept(caps *vk.Caps, p engine.Problem) (plan Plan, err error) {
	if p.Activation != engine.TimesDSiLU || p.TransA || !p.TransB || p.Scale() != 1 || p.Beta != 0 || p.Bias || p.Residual {
		return plan, fmt.Errorf("gemm: problem %v is not dy * wᵀ, times silu'", p)
	}
	if err := p.Validate(); err != nil {
		return plan, err
	}
	if p.K > maxColumns {
		return plan, engine.Unsupported("w has %d columns, not from 1 to %d", p.K, maxColumns)
	}
	if p.DType == dtype.Float32 {
		return plan, engine.Unsupported("gradients of float32 by pre and w at a time: no kernel")
	}
	if limit := caps.MaxWorkgroupCount; p.Batches() > int(limit[2]) {
		return plan, engine.Unsupported("batch=%d is more than the device's %d workgroups", p.Batches(), limit[2])
	}
	plan.take((p.M+keptRows-1)/keptRows, p.Batches()*p.N, p.K)
	return plan, nil
}

// BackwardKept computes the gradients as Backward does, from a pre that Forward wrote instead of
// A and B:
//
//	dpre = (dy * wᵀ) ∘ silu'(pre)
//	dw   = silu(pre)ᵀ * dy
//
// in one kernel, bound by memory more than by arithmetic.
//
// P is the problem of dy * wᵀ: p.K is the columns of w, from 1 to 8, p.TransB is set and
// p.Activation is TimesDSiLU. Pre is fastest with an offset and strides that are multiples of 8
// elements. The other tensors are as in Backward. Of o, only the workspace counts.
//
// BackwardKept returns the steps to record, as Backward does. It returns an error that wraps
// vk.ErrUnsupported if p.DType is float32 or w has more columns, and an error naming the argument
// if a tensor does not fit.
func BackwardKept(c *vk.Cmd, t Tensors, p engine.Problem, o engine.Options) (s engine.Steps, err error) {
	plan, err := ChooseKept(c.Device().Caps(), p)
	if err != nil {
		return s, err
	}
	if err = checkGradients(t, p.K, p, argument.New("pre", t.Pre, true, p.DType, p.CShape())); err != nil {
		return s, err
	}
	args := engine.Args{C: t.DPre, A: t.Pre, R: t.W, X: t.DY}
	memory, at, err := plan.memory.Workspace(c, &o, &args)
	if err != nil {
		return s, err
	}
	args.Slice()
	args.S = plan.partial(memory, at, p.N, p.K, p)
	args.More = 2 * float64(p.N) * float64(p.K) // the operations of dw
	s.Product = []func(*vk.Cmd) error{
		func(c *vk.Cmd) error { return recordKept(c, args, p) },
		plan.sum(p, t.DW.Narrow(), args.S),
	}
	return s, nil
}

func recordKept(c *vk.Cmd, args engine.Args, p engine.Problem) error {
	kernel := chips.Kernel[engine.Params](c, "gemm_skinny_dsilu", p.DType.Short(), keptSpec{
		WorkgroupSize: keptThreads, BlockM: keptRows, BlockN: keptColumns,
		AAligned: argument.Aligned(8, args.A), Columns: uint32(p.K), Epilogue: engine.NewEpilogueSpec(args, p),
	}, vk.KernelOptions{})
	blocks := (p.M + keptRows - 1) / keptRows * ((p.N + keptColumns - 1) / keptColumns)
	groups := engine.Grid(c, blocks, p.Batches(), "m=%d and n=%d", p.M, p.N)
	c.Note(func() vk.Note { return args.Note(p, &engine.Config{Impl: engine.Scalar}, p.Batches()) })
	kernel.Dispatch(c, groups, engine.NewParams(args, p, &engine.Config{BlockK: 1}, blocks),
		args.A, args.C, args.R, args.X, args.S)
	return c.Err()
}

// checkGradients checks the tensors of a kernel that makes dpre and dw of dy, w and inputs of its
// own. It extends the rows of dpre by the zeros up to the next multiple of 8 elements.
func checkGradients(t Tensors, columns int, p engine.Problem, own ...argument.Argument) error {
	wShape := []int{p.Batches(), p.N, columns}
	inputs := append([]argument.Argument{argument.New("dy", t.DY, true, p.DType, []int{p.Batches(), p.M, columns})}, own...)
	err := argument.Check("gemm", append(inputs, argument.New("w", t.W, true, p.DType, wShape)), []argument.Argument{
		argument.New("dpre", t.DPre, true, p.DType, p.CShape()),
		argument.New("dw", t.DW, true, p.Out, wShape),
	})
	if err != nil {
		return err
	}
	if !argument.Aligned(8, t.DPre) {
		return fmt.Errorf("gemm: dpre has offset %d and strides %v: not multiples of 8 elements", t.DPre.Offset, t.DPre.Strides)
	}
	if end := 2 * int64((t.DPre.Offset+t.DPre.Span()+7)/8*8); end > t.DPre.Buffer.Bytes() {
		return fmt.Errorf("gemm: dpre with its zeros ends at byte %d of a buffer of %d", end, t.DPre.Buffer.Bytes())
	}
	return nil
}
