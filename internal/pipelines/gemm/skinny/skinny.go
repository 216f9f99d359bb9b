// Package skinny multiplies silu of a product by matrices of a few columns, such as the last
// layer of a head, in the kernel of the product. A product of its own would read all hidden units
// for a few operations on each; here they stay on the chip.
//
//	pre  = Alpha * op(A) * op(B)
//	y    = silu(pre) * w                     Forward
//
//	dpre = (dy * wᵀ) ∘ silu'(pre)            Backward, which computes pre again, and
//	dw   = silu(pre)ᵀ * dy                   BackwardKept, which reads it
//
// [Mixture] makes mixtures of normal distributions of y. Hidden units are not rounded.
//
//	tensor          shape               format
//	A, B            as in package gemm  DType
//	W, DW           (batch, n, columns) DType, Out
//	Y, DY           (batch, m, columns) Out, DType
//	Pre, DPre       (batch, m, n)       DType
//
// A second kernel adds up the sums of workgroups in a fixed order. The kernels are gemm_skinny,
// gemm_skinny_bwd, gemm_skinny_dsilu and gemm_mixture. Package mlp runs the first three for
// heads, package mixture the last.
package skinny

import (
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// maxColumns is the most columns of W: an invocation has a sum for each.
const maxColumns = 8

// Tensors are the arguments of Forward, Backward and BackwardKept. Tensors that a formula does not
// name are left out.
type Tensors struct {
	A, B, W      vk.Tensor
	Y            vk.Tensor // written by Forward
	Pre          vk.Tensor // written by Forward with SiLUKeep, read by BackwardKept
	DY, DPre, DW vk.Tensor // the gradients read DY, and write DPre and DW
}

// skinnySpec is the specialization of gemm_skinny.comp and gemm_skinny_bwd.comp.
type skinnySpec struct {
	engine.MatrixSpec
	Columns uint32 `glsl:"COLUMNS"`
}

// packedSpec is the specialization of gemm_skinny_packed.
type packedSpec struct {
	skinnySpec
	Skinny bool `glsl:"SKINNY_MATRIX"`
	engine.Deal
}

// A Plan is the configuration of a call, with the offsets in its workspace.
type Plan struct {
	Config engine.Config
	sums   int // partial sums of an element of the result
	memory engine.MemoryPlan
}

// Workspace returns the bytes of device memory that the call takes with the same options.
func (plan *Plan) Workspace() int64 { return plan.memory.Bytes }

// Kernels lists the modules of the kernel of that name, in order, without copies of operands
// whose rows are not aligned.
func (plan *Plan) Kernels(name string) []string {
	if plan.Config.PackB {
		return []string{"gemm_pack", name + "_packed", "gemm_combine"}
	}
	return []string{name, "gemm_combine"}
}

// choose chooses the configuration of a kernel that needs more shared memory than a product, by
// bytes. It lays out copies of operands.
func (plan *Plan) choose(caps *vk.Caps, p engine.Problem, columns int, opt *engine.Options, bytes func(*engine.Config) int, table *engine.Table, packs bool) (err error) {
	if columns < 1 || columns > maxColumns {
		return engine.Unsupported("w has %d columns, not from 1 to %d", columns, maxColumns)
	}
	if plan.Config, err = chooseSiLU(caps, p, p, opt, bytes, table, packs); err != nil {
		return err
	}
	if n := p.Batches(); n > int(caps.MaxWorkgroupCount[2]) {
		return engine.Unsupported("batch=%d is more than the device's %d workgroups", n, caps.MaxWorkgroupCount[2])
	}
	plan.memory = plan.Config.Memory(caps, &p, opt)
	return nil
}

// take adds memory for partial sums of a result.
func (plan *Plan) take(sums, rows, columns int) {
	plan.sums = sums
	plan.memory.Partials = plan.memory.Bytes
	plan.memory.Bytes += 4 * int64(sums) * int64(rows) * int64(engine.PartialStride(columns))
}

// partial returns the partial sums of a result (batch, rows, columns). At is where the memory of
// the call begins.
func (plan *Plan) partial(memory *vk.Buffer, at int64, rows, columns int, p engine.Problem) vk.Tensor {
	stride := engine.PartialStride(columns)
	partial := vk.Tensor{
		Buffer: memory, DType: dtype.Float32,
		Shape:   []int{plan.sums * p.Batches(), rows, columns},
		Strides: []int{rows * stride, stride, 1},
		Offset:  int((at + plan.memory.Partials) / 4),
	}
	return partial.Narrow()
}

// steps returns the kernel of that name, which writes partial sums of result, and the kernel that
// adds them up.
func (plan *Plan) steps(name string, args engine.Args, p engine.Problem, result, partial vk.Tensor) steps.List {
	return steps.List{
		func(c *vk.Cmd) error { return plan.record(c, name, args, p, partial) },
		plan.sum(p, result, partial),
	}
}

// sum returns gemm_combine, which adds up partial sums of result.
func (plan *Plan) sum(p engine.Problem, result, partial vk.Tensor) func(*vk.Cmd) error {
	sums := engine.Problem{Batch: p.Batch, M: partial.Shape[1], N: partial.Shape[2], K: p.K, DType: p.DType, Out: p.Out}
	return func(c *vk.Cmd) error { return engine.Combine(c, engine.Args{C: result}, partial, sums, plan.sums) }
}

// record records the kernel of that name.
func (plan *Plan) record(c *vk.Cmd, name string, args engine.Args, p engine.Problem, partial vk.Tensor) error {
	caps := c.Device().Caps()
	if plan.Config.PackB {
		name += "_packed"
	}
	constants, err := engine.NewMatrixSpec(caps, args, p, plan.Config)
	if err != nil {
		return err
	}
	constants.Epilogue.OutAligned = argument.Aligned(4, args.X) // the rule of lib/gemm_skinny.glsl
	var spec any = skinnySpec{constants, uint32(partial.Shape[2])}
	if plan.Config.PackB {
		shape, lack := chips.MatrixShape(caps, p.DType)
		if lack != "" {
			return engine.Unsupported("coopmat: %s", lack)
		}
		layout, err := chips.LayoutOf(c.Device(), p.DType, shape)
		if err != nil {
			return err
		}
		spec = packedSpec{skinnySpec{constants, uint32(partial.Shape[2])}, layout.SameAsAcc, args.Deal.Constants()}
	}
	kernel := chips.Kernel[engine.Params](c, name, p.DType.Short(), spec, chips.MatrixOptions(caps))
	return engine.Dispatch(c, kernel, args, p, plan.Config)
}

// chooseSiLU returns the configuration of a kernel on matrices that keeps silu of p's products on
// the chip. The function bytes returns how much shared memory the kernel needs beside a product's.
// The problem as has a block for each workgroup of the kernel.
func chooseSiLU(caps *vk.Caps, p, as engine.Problem, opt *engine.Options, bytes func(*engine.Config) int, table *engine.Table, packs bool) (c engine.Config, err error) {
	if p.Activation != engine.SiLU || p.Beta != 0 || p.Bias || p.Residual {
		return engine.Config{}, fmt.Errorf("gemm: problem %v has another epilogue than silu", p)
	}
	if err := p.Validate(); err != nil {
		return engine.Config{}, err
	}
	if p.DType == dtype.Float32 {
		return c, engine.Unsupported("hidden units of float32 operands do not stay on the chip: no kernel")
	}
	impl := max(opt.Impl, engine.CoopMat)
	if opt.Config != nil {
		impl = opt.Config.Impl
	}
	if impl != engine.CoopMat {
		return c, engine.Unsupported("%v: hidden units stay on the chip in kernels on matrices only", impl)
	}
	if opt.Config == nil {
		c, err = engine.ChooseBeside(caps, table, as, impl, bytes, opt.Tuning, packs)
	} else if c, err = engine.Choose(caps, as, *opt); err == nil {
		if c.PackB && !packs {
			return c, engine.Unsupported("%v: no kernel keeps hidden units on the chip and packs op(B)", c)
		}
		err = c.FitsBeside(caps, &as, bytes(&c))
	}
	if err != nil {
		return c, err
	}
	c.Splits, c.Rows = 1, 0
	return c, nil
}

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

// forwardBytes is the shared memory of w in lib/gemm_skinny.glsl.
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
		list = steps.Together(list, steps.List{plan.memory.PackB(c.Device().Caps(), &args, p, memory, at)})
	}
	args.C = plan.partial(memory, at, p.M, columns, p)
	args.More = 2 * float64(p.N) * float64(columns)
	return append(list, plan.steps("gemm_skinny", args, p, t.Y, args.C)...).Record(c)
}

// The tables of the kernels, under the names of the program.
var (
	forwardTable  = engine.NewTable("grouped", kit.Forward, "gemm_skinny", "gemm_skinny_packed", "gemm_pack", "gemm_combine")
	backwardTable = engine.NewTable("grouped", kit.Backward, "gemm_skinny_bwd", "gemm_combine")
	mixtureTable  = engine.NewTable("mixture", kit.Forward, "gemm_mixture", "gmm_merge")
)

// Candidates returns configurations that are worth measuring for the kernel of a table, all
// feasible: the kernel's own choice, then the tiles of products that fit. Choose is the kernel's.
func Candidates(caps *vk.Caps, p engine.Problem, choose func(o engine.Options) (engine.Config, error)) ([]engine.Config, error) {
	start, err := choose(engine.Options{})
	if err != nil {
		return nil, err
	}
	list, err := engine.Candidates(caps, p, engine.CoopMat)
	if err != nil {
		return nil, fmt.Errorf("skinny: %w", err)
	}
	return fitting(start, list, choose), nil
}

// Variants returns the variants of c that fit.
func Variants(caps *vk.Caps, p engine.Problem, c engine.Config, choose func(o engine.Options) (engine.Config, error)) []engine.Config {
	return fitting(c, engine.Variants(caps, p, c), choose)[1:]
}

// fitting returns first, and the configurations of list, without splits, that the kernel can take.
func fitting(first engine.Config, list []engine.Config, choose func(o engine.Options) (engine.Config, error)) []engine.Config {
	all := []engine.Config{first}
	for _, c := range list {
		c.Splits, c.Rows = 1, 0
		if slices.Contains(all, c) {
			continue
		}
		if got, err := choose(engine.Options{Config: &c}); err == nil && got == c {
			all = append(all, c)
		}
	}
	return all
}
