package skinny

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/vk"
)

const mixtureColumns = 3 // of W: logit, mu, log sigma

// mixtureSpec is the specialization of gemm_mixture.comp.
type mixtureSpec struct {
	engine.MatrixSpec
	Heads uint32 `glsl:"HEADS"`
}

// MixtureTensors are what Mixture reads and writes.
type MixtureTensors struct {
	A, B, W, Y vk.Tensor
	States     vk.Tensor // written
}

// A MixturePlan is what Mixture runs, with the offsets in its workspace.
type MixturePlan struct {
	Config engine.Config
	// Groups is the number of groups of heads that workgroups best divide.
	Groups int

	blocks int // of rows
	memory engine.MemoryPlan
}

// Workspace returns the bytes of device memory that Mixture takes with the same options.
func (plan *MixturePlan) Workspace() int64 { return plan.memory.Bytes }

// ChooseMixture returns what Mixture runs for p. Its error wraps vk.ErrUnsupported if Mixture
// does not handle it.
//
// A workgroup takes the heads of its group one after the other. So the time is the waves of
// workgroups times the heads of a group. Fewer groups win if they are slower by at most 1/16,
// since states take memory. No group has one head only, unless the mixture has one head, since the
// states of such a group would be its outputs.
func ChooseMixture(caps *vk.Caps, p engine.Problem, o engine.Options) (plan MixturePlan, err error) {
	as := p
	as.N = 1 // a workgroup has all columns
	c, err := chooseSiLU(caps, p, as, &o, func(c *engine.Config) int { return mixtureBytes(caps, c, &p) }, mixtureTable, false)
	if err != nil {
		return plan, err
	}
	blockM, _ := c.Block(caps, p.DType)
	plan.Config, plan.blocks = c, (p.M+blockM-1)/blockM
	plan.Groups = mixtureGroups(c.Slots(caps, &p), plan.blocks, p.Batches())
	plan.memory = c.Memory(caps, &p, &o)
	return plan, nil
}

// mixtureBytes is the shared memory of w and of outputs in gemm_mixture.comp.
func mixtureBytes(caps *vk.Caps, c *engine.Config, p *engine.Problem) int {
	blockM, _ := c.Block(caps, p.DType)
	return forwardBytes(caps, c, p, mixtureColumns) + 4*mixtureColumns*blockM*c.SubgroupsN
}

// mixtureGroups returns the number of groups for workgroups that have a block of rows each, on a
// device that runs slots workgroups at a time. Slots is 0 if that is not known.
func mixtureGroups(slots, blocks, heads int) int {
	if slots == 0 {
		return 1
	}
	turns := func(groups int) int {
		return (blocks*groups + slots - 1) / slots * ((heads + groups - 1) / groups)
	}
	best := turns(1)
	for groups := 2; groups <= heads/2; groups++ {
		best = min(best, turns(groups))
	}
	groups := 1
	for turns(groups)*16 > best*17 {
		groups++
	}
	return groups
}

// Mixture computes how likely numbers are under mixtures of normal distributions, one for each
// row. The components of a mixture are the products of a batch, the heads:
//
//	(logit, mu, log_sigma)[k] = silu(Alpha * op(A) * op(B[k])) * w[k]
//	states[g]                 = state of the mixture of the heads of group g at y
//
// One kernel writes neither op(A) * op(B) nor the outputs of heads. Outputs are float32, and not
// rounded. gmm.Merge makes log-probabilities of the states.
//
// A and B are as in package gemm. W is (batch, n, 3), of p.DType, with any strides and a
// contiguous last axis. Y is (m), float32, contiguous. States is (groups, m, 8), float32, in
// memory of its own, with strides and an offset that are multiples of 4 elements. There are as
// many groups as States has matrices, at most batch. Group g of G has the heads [g*batch/G,
// (g+1)*batch/G). P.Activation is SiLU and p.Out float32.
//
// Mixture records into c and returns, as gemm.Forward does. It returns an error that wraps
// vk.ErrUnsupported if p.DType is float32, the device has no matrices of it or o forces another
// path. It returns an error naming the argument if a tensor does not fit.
func Mixture(c *vk.Cmd, t MixtureTensors, p engine.Problem, o engine.Options) (err error) {
	defer c.Keep(&err)
	defer c.Scope()()
	d := c.Device()
	plan, err := ChooseMixture(d.Caps(), p, o)
	if err != nil {
		return err
	}
	args, err := t.arguments(p)
	if err != nil {
		return err
	}
	memory, at, err := plan.memory.Workspace(c, &o, &args)
	if err != nil {
		return err
	}
	if err := plan.memory.Pack(&args, memory, at).Record(c); err != nil {
		return err
	}
	groups := engine.Grid(c, plan.blocks, t.States.Shape[0], "m=%d", p.M)
	spec, err := engine.NewMatrixSpec(d.Caps(), args, p, plan.Config)
	if err != nil {
		return err
	}
	kernel := chips.Kernel[engine.Params](c, "gemm_mixture", p.DType.Short(), mixtureSpec{spec, uint32(p.Batches())}, chips.MatrixOptions(d.Caps()))
	outs := args.Bound()
	args.More = 2 * float64(p.N) * mixtureColumns
	c.Note(func() vk.Note { return args.Note(p, &plan.Config, p.Batches()) })
	kernel.Dispatch(c, groups, engine.NewParams(args, p, &plan.Config, plan.blocks),
		args.A, args.B, outs[0], outs[1], outs[2], outs[3])
	return c.Err()
}

// arguments checks the tensors of a call and returns them as the kernel's arguments.
func (t *MixtureTensors) arguments(p engine.Problem) (args engine.Args, err error) {
	states, y := t.States, t.Y
	if p.Out != dtype.Float32 {
		return args, fmt.Errorf("gemm: out=%v of Mixture is not float32", p.Out)
	}
	if len(states.Shape) != 3 || states.Shape[0] < 1 || states.Shape[0] > p.Batches() {
		return args, fmt.Errorf("gemm: states has shape %v, want [groups %d %d] with groups from 1 to %d", states.Shape, p.M, gmm.StateSize, p.Batches())
	}
	err = argument.Check("gemm", []argument.Argument{
		argument.New("a", t.A, true, p.DType, p.AShape()),
		argument.New("b", t.B, true, p.DType, p.BShape()),
		argument.New("w", t.W, true, p.DType, []int{p.Batches(), p.N, mixtureColumns}),
		argument.New("y", y, true, dtype.Float32, []int{p.M}),
	}, []argument.Argument{argument.New("states", states, true, dtype.Float32, []int{states.Shape[0], p.M, gmm.StateSize})})
	if err != nil {
		return args, err
	}
	if !argument.Aligned(4, states) {
		return args, fmt.Errorf("gemm: states has offset %d and strides %v: not multiples of 4 elements", states.Offset, states.Strides)
	}
	y.Shape, y.Strides = []int{1, 1, p.M}, []int{0, 0, 1}
	return engine.Args{C: states, A: t.A, B: t.B, R: t.W, X: y}, nil
}
