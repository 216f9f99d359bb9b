package mixture

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/chain"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A forwardPlan is what Forward runs: the fused kernel, whose workgroups have a group of heads,
// or the kernels of mlp and gmm.
type forwardPlan struct {
	memory chain.Memory
	words  string
	// The modules that run, in order. The sum of the loss is the last.
	kernels []string
	parts   []chain.Part

	fused  bool
	p      engine.Problem // of the fused kernel
	opt    engine.Options // likewise
	groups int            // of heads
	states int64          // where the states of groups lie in the workspace

	outputs int64 // without the fused kernel: where the outputs of heads lie, (tokens, heads, 3) in float32
}

func newForwardPlan(caps *vk.Caps, p Problem, opt Options) (plan forwardPlan, err error) {
	if err := validate(p, opt); err != nil {
		return plan, err
	}
	mixtures, err := gmm.Choose(caps, p.Mixtures(), kit.Forward, gmm.Options{})
	if err != nil {
		return plan, wrap(err)
	}
	sums := mixtures.Workspace()
	if !opt.Outputs {
		err := plan.fuse(caps, p, opt, sums)
		if err == nil || !errors.Is(err, vk.ErrUnsupported) {
			return plan, err
		}
	}
	heads := p.Perceptrons()
	heads.Float32 = true
	runs, err := mlp.Choose(caps, heads, kit.Forward, opt.perceptrons())
	if err != nil {
		return plan, wrap(err)
	}
	plan.words = runs.String() + " | gmm of outputs in memory"
	plan.kernels = append(runs.Kernels(), mixtures.Kernels()...)
	plan.parts = runs.Parts()
	plan.memory.Take(max(sums, runs.Workspace()))
	plan.outputs = plan.memory.Take(4 * 3 * int64(p.Tokens) * int64(p.Heads))
	return plan, nil
}

func validate(p Problem, opt Options) error { return cmp.Or(p.Validate(), opt.Validate()) }

// fuse makes f the plan of the fused kernel. The sums of the loss lie at the beginning of its
// memory.
func (f *forwardPlan) fuse(caps *vk.Caps, p Problem, opt Options, sums int64) error {
	problem := engine.Problem{Batch: p.Heads, M: p.Tokens, N: p.Hidden, K: p.In, Activation: engine.SiLU, DType: p.DType, Out: dtype.Float32}
	options := engine.Options{Impl: opt.Impl, Tuning: opt.Tuning}
	plan, err := skinny.ChooseMixture(caps, problem, options)
	if err != nil {
		return wrap(err)
	}
	groups := plan.Groups
	if opt.Groups > 0 {
		groups = min(opt.Groups, p.Heads)
	}
	f.fused, f.p, f.opt, f.groups = true, problem, options, groups
	f.memory.Take(sums)
	f.opt.WorkspaceOffset = f.memory.Take(plan.Workspace())
	f.states = f.memory.Take(4 * gmm.StateSize * int64(groups) * int64(p.Tokens))
	f.words = fmt.Sprintf("mixture %v groups%d", plan.Config, groups)
	f.kernels = []string{"gemm_mixture", "gmm_merge"}
	f.parts = []chain.Part{{Kernel: "mixture", Pass: kit.Forward, Problem: problem}}
	return nil
}

func (f *forwardPlan) record(c *vk.Cmd, memory *vk.Buffer, t Tensors, p Problem, o Options) error {
	opt := gmm.Options{Workspace: memory}
	if !f.fused {
		heads, of, x := p.Perceptrons(), o.perceptrons(), t.heads()
		heads.Float32, of.Workspace = true, memory
		x.Y = vk.View(memory, dtype.Float32, heads.YShape()...)
		x.Y.Offset = int(f.outputs / 4)
		if err := mlp.Forward(c, x, heads, of); err != nil {
			return wrap(err)
		}
		m := gmm.Tensors{Y: t.Y, LogP: t.LogP, Loss: t.Loss}
		m.Logit, m.Mu, m.LogSigma = gmm.Interleaved(x.Y)
		return wrap(gmm.Forward(c, m, p.Mixtures(), opt))
	}
	states := vk.View(memory, dtype.Float32, f.groups, p.Tokens, gmm.StateSize)
	states.Offset = int(f.states / 4)
	xs := t.X
	xs.Shape, xs.Strides = []int{p.Heads, p.Tokens, p.In}, []int{0, t.X.Strides[0], t.X.Strides[1]}
	fused := f.opt
	fused.Workspace = memory
	if err := skinny.Mixture(c, skinny.MixtureTensors{A: xs, B: t.W1, W: t.W2, Y: t.Y, States: states}, f.p, fused); err != nil {
		return wrap(err)
	}
	return wrap(gmm.Merge(c, states, gmm.Tensors{LogP: t.LogP, Loss: t.Loss}, p.Mixtures(), opt))
}

// wrap puts the name of this package before an error of another package.
func wrap(err error) error { return chain.Wrap("mixture", err) }
