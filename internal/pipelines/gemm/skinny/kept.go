package skinny

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/shaders"
	"github.com/flashvk/flashvk/vk"
)

// keptSpec is the specialization of gemm_narrow_dsilu.comp.
type keptSpec struct {
	WorkgroupSize uint32              `glsl:"WORKGROUP_SIZE"`
	BlockM        uint32              `glsl:"BLOCK_M"`
	BlockN        uint32              `glsl:"BLOCK_N"`
	AAligned      bool                `glsl:"A_ALIGNED"`
	Columns       uint32              `glsl:"COLUMNS"`
	Epilogue      engine.EpilogueSpec `glsl:"epilogue"`
}

// Blocks of gemm_narrow_dsilu. Workgroups are small, so that a multiprocessor has many. A row of
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
	if p.Activation != engine.TimesDSiLU || p.TransA || !p.TransB || p.Scale() != 1 || p.Beta != 0 || p.Residual {
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
// BackwardKept records into c and returns, as gemm.Forward does. It returns an error that wraps
// vk.ErrUnsupported if p.DType is float32 or w has more columns, and an error naming the argument
// if a tensor does not fit.
func BackwardKept(c *vk.Cmd, t Tensors, p engine.Problem, o engine.Options) (err error) {
	defer c.Keep(&err)
	s, err := BackwardKeptSteps(c, t, p, o)
	if err != nil {
		return err
	}
	return s.Record(c)
}

// BackwardKeptSteps returns what BackwardKept records, as BackwardSteps does.
func BackwardKeptSteps(c *vk.Cmd, t Tensors, p engine.Problem, o engine.Options) (s engine.Steps, err error) {
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

// recordKept records gemm_narrow_dsilu.
func recordKept(c *vk.Cmd, args engine.Args, p engine.Problem) error {
	d := c.Device()
	module, err := shaders.Get("gemm_narrow_dsilu", p.DType.Short())
	if err != nil {
		return err
	}
	kernel, err := vk.CachedKernel[engine.Params](d, module.Name, module.SPIRV, keptSpec{
		WorkgroupSize: keptThreads, BlockM: keptRows, BlockN: keptColumns,
		AAligned: engine.Aligned(8, args.A), Columns: uint32(p.K), Epilogue: engine.NewEpilogueSpec(args, p),
	}, vk.KernelOptions{})
	if err != nil {
		return err
	}
	limit := d.Caps().MaxWorkgroupCount
	blocks := (p.M + keptRows - 1) / keptRows * ((p.N + keptColumns - 1) / keptColumns)
	x := min(blocks, int(limit[0]))
	y := (blocks + x - 1) / x
	if y > int(limit[1]) {
		return engine.Unsupported("m=%d and n=%d make %d blocks, more than the device's %d x %d workgroups", p.M, p.N, blocks, limit[0], limit[1])
	}
	c.Note(func() vk.Note { return args.Note(p, &engine.Config{Impl: engine.Scalar}, p.Batches()) })
	kernel.Dispatch(c, vk.Groups{X: uint32(x), Y: uint32(y), Z: uint32(p.Batches())}, engine.NewParams(args, p, &engine.Config{BlockK: 1}, blocks),
		args.A, args.C, args.R, args.X, args.S)
	return c.Err()
}
