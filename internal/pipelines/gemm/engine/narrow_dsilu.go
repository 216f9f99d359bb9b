package engine

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// narrowDSiLUSpec is the specialization of gemm_narrow_dsilu.comp.
type narrowDSiLUSpec struct {
	WorkgroupSize uint32       `glsl:"WORKGROUP_SIZE"`
	BlockM        uint32       `glsl:"BLOCK_M"`
	BlockN        uint32       `glsl:"BLOCK_N"`
	AAligned      bool         `glsl:"A_ALIGNED"`
	Columns       uint32       `glsl:"COLUMNS"`
	Epilogue      EpilogueSpec `glsl:"epilogue"`
}

// The blocks of gemm_narrow_dsilu. A workgroup is small, so that many are on a
// multiprocessor, and a row of a block is two whole lines of a cache. Blocks are high, as
// each has sums of dw: 256 rows of 2 bytes have 16 bytes of them for three columns.
const (
	dsiluThreads = 128
	dsiluRows    = 256
	dsiluColumns = 128
)

// newNarrowDSiLUPlan returns the plan for p: an element of dw has a sum for each block of
// rows.
func newNarrowDSiLUPlan(caps *vk.Caps, p Problem) (plan narrowPlan, err error) {
	if p.Activation != TimesDSiLU || p.TransA || !p.TransB || p.Scale() != 1 || p.Beta != 0 || p.Residual {
		return plan, fmt.Errorf("gemm: problem %v is not dy * wᵀ, times silu'", p)
	}
	if err := p.Validate(); err != nil {
		return plan, err
	}
	if p.K > maxNarrow {
		return plan, Unsupported("w has %d columns, not from 1 to %d", p.K, maxNarrow)
	}
	if p.DType == dtype.Float32 {
		return plan, Unsupported("gradients of float32 by pre and w at a time: no kernel")
	}
	if limit := caps.MaxWorkgroupCount; p.Batches() > int(limit[2]) {
		return plan, Unsupported("batch=%d is more than the device's %d workgroups", p.Batches(), limit[2])
	}
	plan.take((p.M+dsiluRows-1)/dsiluRows, p.Batches()*p.N, p.K)
	return plan, nil
}

// NarrowDSiLUWorkspace returns the bytes of device memory that NarrowDSiLU takes. Its error
// wraps ErrUnsupported if NarrowDSiLU does not handle p.
func NarrowDSiLUWorkspace(caps *vk.Caps, p Problem) (int64, error) {
	plan, err := newNarrowDSiLUPlan(caps, p)
	return plan.memory.Bytes, err
}

// NarrowDSiLU computes the gradients of what Narrow does, as NarrowBackward does, of a pre that
// is in memory, as Narrow wrote it, instead of a and b:
//
//	dpre = (dy * wᵀ) ∘ silu'(pre)
//	dw   = silu(pre)ᵀ * dy
//
// in one kernel, bound by memory more than by arithmetic, and a second that adds up dw over
// blocks of rows, always in the same order.
//
// p is the Problem of dy * wᵀ: p.K is the columns of w, from 1 to 8, p.TransB is set and
// p.Activation is TimesDSiLU. Pre is (batch, m, n), of p.DType, with any strides and a
// contiguous last axis, best with an offset and strides that are multiples of 8 elements; the
// other tensors are as in NarrowBackward, and dw is of p.Out. Of opt, only the workspace
// counts.
//
// NarrowDSiLU records into c and returns, as Multiply does. It returns an error that wraps
// ErrUnsupported if p.DType is float32 or w has more columns, and an error naming the argument
// if a tensor does not fit.
func NarrowDSiLU(c *vk.Cmd, dpre, dw, dy, pre, w vk.Tensor, p Problem, opt Options) (err error) {
	defer c.Keep(&err)
	s, err := NarrowDSiLUSteps(c, dpre, dw, dy, pre, w, p, opt)
	if err != nil {
		return err
	}
	return s.Record(c)
}

// NarrowDSiLUSteps returns what NarrowDSiLU records, as NarrowBackwardSteps does.
func NarrowDSiLUSteps(c *vk.Cmd, dpre, dw, dy, pre, w vk.Tensor, p Problem, opt Options) (s Steps, err error) {
	plan, err := newNarrowDSiLUPlan(c.Device().Caps(), p)
	if err != nil {
		return s, err
	}
	if err = checkGradients(dpre, dw, dy, w, p.K, p, argument.New("pre", pre, true, p.DType, p.CShape())); err != nil {
		return s, err
	}
	args := Args{C: dpre, A: pre, R: w, X: dy}
	memory, at, err := plan.memory.Workspace(c, &opt, &args)
	if err != nil {
		return s, err
	}
	args.Slice()
	args.S = plan.partial(memory, at, p.N, p.K, p)
	args.More = 2 * float64(p.N) * float64(p.K) // those of dw
	s.Product = []func(*vk.Cmd) error{
		func(c *vk.Cmd) error { return recordDSiLU(c, args, p) },
		plan.sum(p, dw.Narrow(), args.S),
	}
	return s, nil
}

// recordDSiLU records gemm_narrow_dsilu.
func recordDSiLU(c *vk.Cmd, args Args, p Problem) error {
	d := c.Device()
	module, err := shaders.Get("gemm_narrow_dsilu", p.DType.Short())
	if err != nil {
		return err
	}
	kernel, err := vk.CachedKernel[Params](d, module.Name, module.SPIRV, narrowDSiLUSpec{
		WorkgroupSize: dsiluThreads, BlockM: dsiluRows, BlockN: dsiluColumns,
		AAligned: Aligned(8, args.A), Columns: uint32(p.K), Epilogue: NewEpilogueSpec(args, p),
	}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	limit := d.Caps().MaxWorkgroupCount
	blocks := (p.M + dsiluRows - 1) / dsiluRows * ((p.N + dsiluColumns - 1) / dsiluColumns)
	x := min(blocks, int(limit[0]))
	y := (blocks + x - 1) / x
	if y > int(limit[1]) {
		return Unsupported("m=%d and n=%d make %d blocks, more than the device's %d x %d workgroups", p.M, p.N, blocks, limit[0], limit[1])
	}
	c.Note(func() vk.Note { return args.Note(p, &Config{Impl: Scalar}, p.Batches()) })
	kernel.Dispatch(c, vk.Groups{X: uint32(x), Y: uint32(y), Z: uint32(p.Batches())}, NewParams(args, p, &Config{BlockK: 1}, blocks),
		args.A, args.C, args.R, args.X, args.S)
	return c.Err()
}
