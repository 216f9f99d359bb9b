// Package fused computes the forward pass of one perceptron in one kernel. It is two products in
// a row (back-to-back GEMM), of which the first never reaches memory:
//
//	y = silu(x * w1) * w2
//
//	tensor  shape         format
//	X       (m, in)       DType
//	W1      (in, hidden)  DType
//	W2      (hidden, n)   DType
//	Y       (m, n)        Out
//
// It was measured to be slower than two products of package gemm on every device. So mlp runs it
// only on request (mlp.Options.Fused). TUNING.md of gemm has the numbers.
package fused

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/steps"
	"github.com/flashvk/flashvk/vk"
)

// A Problem holds the sizes and formats of both products.
type Problem struct {
	M, In, Hidden, N int
	DType, Out       dtype.DType
}

// Validate returns an error that names the first value that breaks a rule.
func (p Problem) Validate() error {
	if err := (engine.Problem{M: p.M, N: p.Hidden, K: p.In, DType: p.DType, Out: p.DType}).Validate(); err != nil {
		return err
	}
	return engine.Problem{M: p.M, N: p.N, K: p.Hidden, DType: p.DType, Out: p.Out}.Validate()
}

// Tensors are what Forward reads, and Y, which it writes, with any distance between rows.
type Tensors struct{ X, W1, W2, Y vk.Tensor }

func unsupported(format string, args ...any) error {
	return argument.Unsupported("fused", format, args...)
}

// A Plan is what Forward runs, with the offsets in its workspace.
type Plan struct {
	Config
	problem  Problem
	operands [3]engine.Layout // x, w1, w2
	in       int              // of the operands, filled with zeros
	second   engine.Problem   // the second product; the first is its left operand
	product  engine.Config    // of the second product
	partials int64
	bytes    int64
}

// Workspace returns the bytes of device memory that Forward takes.
func (plan *Plan) Workspace() int64 { return plan.bytes }

// Choose returns how Forward runs p on a device: with a configuration that must be feasible, or with
// the table's if it is nil. Its error wraps vk.ErrUnsupported if there is none.
func Choose(caps *vk.Caps, p Problem, forced *Config) (plan Plan, err error) {
	if err := p.Validate(); err != nil {
		return plan, err
	}
	if forced != nil {
		plan.Config, err = *forced, forced.Feasible(caps, p)
	} else {
		plan.Config, err = search(caps, p)
	}
	if err != nil {
		return plan, err
	}
	plan.problem = p
	config := &plan.Config
	shape, _ := chips.MatrixShape(caps, p.DType)
	m := int(shape.M)
	steps, _ := config.steps(m, p)
	chunk := config.chunkSteps()
	chunks := (p.Hidden + chunk*m - 1) / (chunk * m)
	blocks := (p.M + config.TilesM*m - 1) / (config.TilesM * m)
	plan.operands = [3]engine.Layout{
		{Width: config.TilesM, Panels: blocks, Depth: steps, Groups: 1},
		{Width: config.HiddenN, Panels: chunks * chunk / config.HiddenN, Depth: steps, Groups: 1},
		{Width: config.TilesN, Panels: config.Subgroups, Depth: chunk, Groups: chunks},
	}
	for i := range plan.operands {
		plan.operands[i].At = plan.bytes // w2 right behind w1: gemm_pair.comp
		plan.bytes += plan.operands[i].Matrices() * int64(m*m*2)
	}
	plan.in = steps * m
	plan.second = engine.Problem{M: p.M, N: p.N, K: chunks * chunk * m, DType: p.DType, Out: p.Out}
	plan.product = engine.Config{
		Impl: engine.CoopMat, SubgroupsM: 1, SubgroupsN: config.Subgroups, TilesM: config.TilesM, TilesN: config.TilesN,
		BlockK: chunk * m, GroupM: 1, Splits: config.Splits, Rows: config.Rows,
	}
	if config.Splits == 0 {
		// A compute unit runs one workgroup, since a large configuration takes all its registers.
		step := 2 * float64(config.TilesM*m) * float64(p.In+p.N) / engine.MatrixFLOPs
		plan.product = plan.product.SplitAs(caps, &plan.second, int(caps.ComputeUnits), step)
	}
	plan.product = plan.product.Fit(&plan.second)
	config.Splits, config.Rows = plan.product.Splits, plan.product.Rows
	plan.partials = (plan.bytes + 255) &^ 255
	plan.bytes = plan.partials + plan.product.PartialBytes(plan.second)
	return plan, nil
}

// spec is the specialization of gemm_pair.comp.
type spec struct {
	WorkgroupSize uint32              `glsl:"WORKGROUP_SIZE"`
	SubgroupsN    uint32              `glsl:"SUBGROUPS_N"`
	MatM          uint32              `glsl:"MAT_M"`
	MatN          uint32              `glsl:"MAT_N"`
	TilesM        uint32              `glsl:"TILES_M"`
	TilesN        uint32              `glsl:"TILES_N"`
	HiddenM       uint32              `glsl:"HIDDEN_M"`
	HiddenN       uint32              `glsl:"HIDDEN_N"`
	SharedSteps   uint32              `glsl:"SHARED_STEPS"`
	Ahead         uint32              `glsl:"AHEAD"`
	LoadAhead     uint32              `glsl:"LOAD_AHEAD"`
	Double        bool                `glsl:"DOUBLE"`
	Partial       bool                `glsl:"PARTIAL"`
	Epilogue      engine.EpilogueSpec `glsl:"epilogue"`
}

// Forward computes y = silu(x * w1) * w2.
//
// A workgroup owns rows of y and keeps their sums in registers. It goes through the hidden units
// in chunks; shared memory holds one chunk, rounded to p.DType. A kernel before packs the
// operands, so that all strides and sizes are equally fast. Where blocks of rows do not fill the
// device, workgroups share rows, with a part of the hidden units each, as products share k.
//
// Forward records into c and returns, as gemm.Forward does. Workspace has plan.Workspace bytes; nil
// takes memory of the Cmd. Y has memory of its own. It returns
// an error that wraps vk.ErrUnsupported if the device has no matrices of p.DType with eight
// elements for each invocation, if left matrices do not hold elements where accumulators do, or
// if n is larger than the columns of y that a workgroup has. It returns an error naming the
// argument if a tensor does not fit.
func Forward(c *vk.Cmd, t Tensors, plan Plan, workspace *vk.Buffer) (err error) {
	defer c.Keep(&err)
	p := plan.problem
	inputs := []argument.Argument{
		argument.New("x", t.X, true, p.DType, []int{p.M, p.In}),
		argument.New("w1", t.W1, true, p.DType, []int{p.In, p.Hidden}),
		argument.New("w2", t.W2, true, p.DType, []int{p.Hidden, p.N}),
	}
	if err := argument.Check("fused", inputs, []argument.Argument{argument.New("y", t.Y, true, p.Out, []int{p.M, p.N})}); err != nil {
		return err
	}
	constants, err := newSpec(c.Device(), p, &plan)
	if err != nil {
		return err
	}
	y := vk.Tensor{Buffer: t.Y.Buffer, DType: t.Y.DType, Shape: []int{1, p.M, p.N}, Strides: []int{0, t.Y.Strides[0], 1}, Offset: t.Y.Offset}
	used := engine.MemoryPlan{Bytes: plan.bytes}
	memory, at, err := used.Workspace(c, &engine.Options{Workspace: workspace}, &engine.Args{C: y, A: t.X, B: t.W1, R: t.W2})
	if err != nil {
		return err
	}
	copies, first := engine.Region(memory, at, plan.partials)
	for i := range plan.operands {
		plan.operands[i].At += first
	}
	args := engine.Args{C: y, K: p.Hidden, More: 2 * float64(p.In) * float64(p.Hidden)}
	args.A = plan.operand(copies, p.DType, 0, plan.operands[0].Panels*int(constants.TilesM*constants.MatM), plan.in)
	args.B = plan.operand(copies, p.DType, 1, plan.in, plan.second.K)
	program := engine.Program(func(c *vk.Cmd, args engine.Args, p engine.Problem, config engine.Config) error {
		return record(c, args, p, config, constants)
	})
	list := steps.List{func(c *vk.Cmd) error {
		return engine.Pack(c, copies, []vk.Tensor{t.X, t.W1, t.W2}, plan.operands[:], engine.PackSpec{}, "x, w1, w2")
	}}
	return append(list, program.Steps(args, plan.second, plan.product, memory, at+plan.partials)...).Record(c)
}

// operand returns the packed copy of an operand in its own shape.
func (plan *Plan) operand(memory *vk.Buffer, t dtype.DType, i, rows, cols int) vk.Tensor {
	return vk.Tensor{Buffer: memory, DType: t, Shape: []int{1, rows, cols}, Strides: []int{0, cols, 1}, Offset: int(plan.operands[i].At / 2)}
}

// newSpec returns the constants of all parts; each part sets whether it is partial, and its
// epilogue.
func newSpec(d *vk.Device, p Problem, plan *Plan) (spec, error) {
	shape, _ := chips.MatrixShape(d.Caps(), p.DType)
	layout, err := chips.LayoutOf(d, p.DType, shape)
	if err != nil {
		return spec{}, err
	}
	if layout.Length != 8 || !layout.SameAsAcc {
		return spec{}, unsupported("left matrices do not have the %d elements of each invocation in the places of accumulators", layout.Length)
	}
	config := &plan.Config
	_, shared := config.steps(int(shape.M), p)
	return spec{
		WorkgroupSize: uint32(config.Subgroups) * d.Caps().SubgroupSize,
		SubgroupsN:    uint32(config.Subgroups),
		MatM:          shape.M,
		MatN:          shape.N,
		TilesM:        uint32(config.TilesM),
		TilesN:        uint32(config.TilesN),
		HiddenM:       uint32(config.HiddenM),
		HiddenN:       uint32(config.HiddenN),
		SharedSteps:   uint32(shared),
		Ahead:         uint32(config.Ahead),
		LoadAhead:     uint32(config.LoadAhead),
		Double:        config.Double,
	}, nil
}

// record records gemm_pair for some rows and hidden units.
func record(c *vk.Cmd, args engine.Args, p engine.Problem, config engine.Config, constants spec) error {
	constants.Partial, constants.Epilogue = config.Splits > 1, engine.NewEpilogueSpec(args, p)
	kernel := chips.Kernel[engine.Params](c, "gemm_pair", p.DType.Short(), constants, chips.MatrixOptions(c.Device().Caps()))
	return engine.Dispatch(c, kernel, args, p, config)
}
