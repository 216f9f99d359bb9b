package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/chips"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/steps"
)

// maxNarrow is the most columns of W in Narrow: an invocation has a sum for each.
const maxNarrow = 8

// narrowSpec is the specialization of gemm_narrow.comp and gemm_narrow_bwd.comp.
type narrowSpec struct {
	MatrixSpec
	Columns uint32 `glsl:"COLUMNS"`
}

// A narrowPlan is what Narrow or NarrowBackward runs, and where it keeps what.
type narrowPlan struct {
	config Config
	parts  int // sums of an element of the result
	memory MemoryPlan
}

// newNarrowPlan returns the plan for p and W of some columns.
func newNarrowPlan(caps *vk.Caps, p Problem, columns int, opt *Options) (plan narrowPlan, err error) {
	if p.Activation == SiLUKeep {
		p.Activation = SiLU // in the same way, and X is written, too
	}
	err = plan.choose(caps, p, columns, opt, func(c *Config) int { return narrowBytes(caps, c, &p, columns) })
	if err != nil {
		return plan, err
	}
	_, blockN := plan.config.Block(caps, p.DType)
	plan.take((p.N+blockN-1)/blockN*plan.config.SubgroupsN, p.Batches()*p.M, columns)
	return plan, nil
}

// choose chooses the configuration, for a kernel that has some bytes of shared memory
// besides Multiply's, and lays out copies of operands.
func (plan *narrowPlan) choose(caps *vk.Caps, p Problem, columns int, opt *Options, bytes func(*Config) int) (err error) {
	if columns < 1 || columns > maxNarrow {
		return Unsupported("w has %d columns, not from 1 to %d", columns, maxNarrow)
	}
	if plan.config, err = chooseSiLU(caps, p, p, opt, bytes); err != nil {
		return err
	}
	if n := p.Batches(); n > int(caps.MaxWorkgroupCount[2]) {
		return Unsupported("batch=%d is more than the device's %d workgroups", n, caps.MaxWorkgroupCount[2])
	}
	plan.memory = plan.config.Memory(caps, &p, opt)
	return nil
}

// take adds memory for partial sums of a result.
func (plan *narrowPlan) take(parts, rows, columns int) {
	plan.parts = parts
	plan.memory.Partials = plan.memory.Bytes
	plan.memory.Bytes += 4 * int64(parts) * int64(rows) * int64(PartialStride(columns))
}

// partial returns the partial sums of a result (batch, rows, columns) in memory whose part
// for the call begins at a byte.
func (plan *narrowPlan) partial(memory *vk.Buffer, at int64, rows, columns int, p Problem) vk.Tensor {
	stride := PartialStride(columns)
	partial := vk.Tensor{
		Buffer: memory, DType: dtype.Float32,
		Shape:   []int{plan.parts * p.Batches(), rows, columns},
		Strides: []int{rows * stride, stride, 1},
		Offset:  int((at + plan.memory.Partials) / 4),
	}
	return partial.Narrow()
}

// steps returns the kernel of that name, which writes partial sums of result, and what adds
// them up.
func (plan *narrowPlan) steps(name string, args Args, p Problem, result, partial vk.Tensor) steps.List {
	return steps.List{
		func(c *vk.Cmd) error { return plan.record(c, name, args, p, partial) },
		plan.sum(p, result, partial),
	}
}

// sum returns gemm_combine, which adds up partial sums of result.
func (plan *narrowPlan) sum(p Problem, result, partial vk.Tensor) func(*vk.Cmd) error {
	sums := Problem{Batch: p.Batch, M: partial.Shape[1], N: partial.Shape[2], K: p.K, DType: p.DType, Out: p.Out}
	return func(c *vk.Cmd) error { return Combine(c, Args{C: result}, partial, sums, plan.parts) }
}

// record records the kernel of that name.
func (plan *narrowPlan) record(c *vk.Cmd, name string, args Args, p Problem, partial vk.Tensor) error {
	caps := c.Device().Caps()
	module, err := shaders.Get(name, p.DType.Short())
	if err != nil {
		return err
	}
	spec, err := NewMatrixSpec(caps, args, p, plan.config)
	if err != nil {
		return err
	}
	spec.Epilogue.OutAligned = Aligned(4, args.X) // as lib/gemm_narrow.glsl has it
	kernel, err := vk.CachedKernel[Params](c.Device(), module.Name, module.SPIRV, narrowSpec{spec, uint32(partial.Shape[2])}, chips.MatrixOptions(caps))
	if err != nil {
		return err
	}
	return Dispatch(c, kernel, args, p, plan.config)
}

// narrowBytes is the shared memory of w in lib/gemm_narrow.glsl.
func narrowBytes(caps *vk.Caps, c *Config, p *Problem, columns int) int {
	_, blockN := c.Block(caps, p.DType)
	return 4 * blockN * columns
}

// chooseSiLU returns the configuration of a kernel on matrices that keeps silu of p's
// products on the chip, with some bytes of shared memory besides Multiply's. As is the
// problem that has as many blocks as the kernel workgroups.
func chooseSiLU(caps *vk.Caps, p, as Problem, opt *Options, bytes func(*Config) int) (c Config, err error) {
	if p.Activation != SiLU || p.Beta != 0 || p.Residual {
		return Config{}, fmt.Errorf("gemm: problem %v has another epilogue than silu", p)
	}
	if err := p.Validate(); err != nil {
		return Config{}, err
	}
	if p.DType == dtype.Float32 {
		return c, Unsupported("hidden units of float32 operands do not stay on the chip: no kernel")
	}
	impl := max(opt.Impl, CoopMat)
	if opt.Config != nil {
		impl = opt.Config.Impl
	}
	if impl != CoopMat {
		return c, Unsupported("%v: hidden units stay on the chip in kernels on matrices only", impl)
	}
	if opt.Config == nil {
		c, err = ChooseBeside(caps, as, impl, bytes)
	} else if c, err = Choose(caps, as, *opt); err == nil {
		if c.Fragments {
			return c, Unsupported("%v: hidden units that stay on the chip have no kernel with fragments", c)
		}
		err = c.FitsBeside(caps, &as, bytes(&c))
	}
	if err != nil {
		return c, err
	}
	c.Splits, c.Rows = 1, 0
	return c, nil
}

// NarrowWorkspace returns the bytes of device memory that Narrow takes with the same
// options, for w of some columns. Its error wraps ErrUnsupported if Narrow does not handle
// them.
func NarrowWorkspace(caps *vk.Caps, p Problem, columns int, opt Options) (int64, error) {
	plan, err := newNarrowPlan(caps, p, columns, &opt)
	return plan.memory.Bytes, err
}

// NarrowConfig returns the configuration that Narrow takes.
func NarrowConfig(caps *vk.Caps, p Problem, columns int, opt Options) (Config, error) {
	plan, err := newNarrowPlan(caps, p, columns, &opt)
	return plan.config, err
}

// Narrow computes products of a batch that are multiplied again, by matrices of a few
// columns,
//
//	y = silu(Alpha * op(A) * op(B)) * w
//
// in one kernel that does not write op(A) * op(B): a workgroup multiplies its block by the
// rows of w that it meets, and a second kernel adds up what workgroups found, always in
// the same order. silu(…) is not rounded.
//
// Y is (batch, m, columns) of p.Out, a and b are as in Multiply and w is (batch, n,
// columns), of p.DType, with any strides and a contiguous last axis. p.Activation is
// SiLU, or SiLUKeep, with which the kernel writes
//
//	x = Alpha * op(A) * op(B)
//
// to pre, (batch, m, n) of p.DType, likewise, best with an offset and strides that are
// multiples of 4 elements. Y and pre have memory of their own.
//
// Narrow records into c and returns, as Multiply does. It returns an error that wraps
// ErrUnsupported if p.DType is float32, the device has no matrices of it, w has more than 8
// columns, or Options force another path, and an error naming the argument if a tensor does not fit.
func Narrow(c *vk.Cmd, y, pre, a, b, w vk.Tensor, columns int, p Problem, opt Options) (err error) {
	defer c.Keep(&err)
	plan, err := newNarrowPlan(c.Device().Caps(), p, columns, &opt)
	if err != nil {
		return err
	}
	yShape := []int{p.Batches(), p.M, columns}
	err = argument.Check("gemm", []argument.Argument{
		argument.New("a", a, true, p.DType, p.AShape()),
		argument.New("b", b, true, p.DType, p.BShape()),
		argument.New("w", w, true, p.DType, []int{p.Batches(), p.N, columns}),
	}, []argument.Argument{
		argument.New("y", y, true, p.Out, yShape),
		argument.New("x", pre, p.HasX(), p.DType, p.CShape()),
	})
	if err != nil {
		return err
	}
	args := Args{C: y, A: a, B: b, R: w, X: pre}
	memory, at, err := plan.memory.Workspace(c, &opt, &args)
	if err != nil {
		return err
	}
	list := plan.memory.Pack(&args, memory, at)
	args.C = plan.partial(memory, at, p.M, columns, p)
	args.More = 2 * float64(p.N) * float64(columns)
	return append(list, plan.steps("gemm_narrow", args, p, y, args.C)...).Record(c)
}
