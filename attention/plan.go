package attention

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Plan says how a pass of a problem runs on a device.
type Plan struct {
	Config   Config         // of the forward pass, unless Decode is
	Backward BackwardConfig // of the backward pass
	Decode   DecodeConfig   // of Decode, or of the forward pass of few queries
	Origin   kit.Origin     // where that comes from

	name    string
	bytes   int64
	kernels []string
}

// String names the configuration of the pass.
func (p Plan) String() string { return p.name }

// Workspace returns the bytes of Options.Workspace: of Backward 8 for each row of each head;
// with Sinks 4 for each 2048 of them; with a Bias that rows share 4 for each key of each query
// head; 4 for each element of dQ and each share of the keys where one kernel computes all
// gradients of more than one block of keys (BackwardConfig.Fused); and, where weights are stored
// (BackwardConfig.Stored), 4 for each row and key of some heads that is not in a block
// that a causal mask hides. All but the last of these are rounded up to 256. What the unfused path and shares of the keys (Config.Splits) keep is
// always memory of the Cmd.
func (p Plan) Workspace() int64 { return p.bytes }

// Kernels lists the modules that run, in order, for a call that leaves no gradient out.
func (p Plan) Kernels() []string { return p.kernels }

// Choose returns how a pass runs for p on a device. Its error wraps ErrUnsupported if no path,
// or not the forced one, handles p.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, opt Options) (plan Plan, err error) {
	switch pass {
	case kit.Forward:
		var decodes bool
		if plan.Decode, plan.Origin, decodes, err = forwardAsDecode(caps, &p, &opt); err != nil {
			return Plan{}, err
		}
		if decodes {
			plan.name, plan.kernels = "decode "+plan.Decode.String(), plan.Decode.kernels(&DecodeProblem{Problem: p})
			return plan, nil
		}
		plan.Decode = DecodeConfig{}
		if plan.Config, plan.Origin, err = forwardConfig(caps, p, opt); err != nil {
			return Plan{}, err
		}
		plan.name, plan.kernels = plan.Config.String(), plan.Config.kernels(p)
	case kit.Backward:
		if plan.Backward, plan.Origin, err = backwardConfig(caps, p, opt); err != nil {
			return Plan{}, err
		}
		shapes := plan.Backward.workspaceShapes(caps, &p)
		plan.name, plan.bytes, plan.kernels = plan.Backward.String(), workspaceBytes(shapes), plan.Backward.kernels(caps, p, shapes)
	default:
		return Plan{}, fmt.Errorf("attention: %v is neither the forward nor the backward pass", pass)
	}
	return plan, nil
}

// Supports returns nil if a pass of p can be computed on a device, and otherwise an error that
// wraps ErrUnsupported and says why not.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, opt Options) error {
	_, err := Choose(caps, p, pass, opt)
	return err
}

// Workspace returns Plan.Workspace of what Choose returns.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, opt Options) (int64, error) {
	plan, err := Choose(caps, p, pass, opt)
	return plan.Workspace(), err
}

// fwdKernels names the fused kernel of each path.
var fwdKernels = [...]string{CoopMat2: "attention_fwd_coopmat2", CoopMat: "attention_fwd_coopmat", Scalar: "attention_fwd_scalar"}

// fwdF32x2Kernels names those of float32 tensors on matrices.
var fwdF32x2Kernels = [...]string{CoopMat2: "attention_fwd_f32x2_coopmat2", CoopMat: "attention_fwd_f32x2_coopmat"}

// kernel returns the name of the fused kernel.
func (c *Config) kernel(t dtype.DType) string {
	if c.Stripes > 0 {
		return fwdDirectKernel
	}
	if t == dtype.Float32 && onMatrices(c.Impl) {
		return fwdF32x2Kernels[c.Impl]
	}
	return fwdKernels[c.Impl]
}

// onMatrices reports whether a path is one of cooperative matrices.
func onMatrices(i Impl) bool { return i == CoopMat2 || i == CoopMat }

// modules lists the modules that a problem runs.
type modules struct {
	p    *Problem
	list []string
}

// add adds a module of the problem's format; with features the one that has those of the
// problem, if any.
func (m *modules) add(name string, features bool) {
	if features && !m.p.Plain() {
		name += "_features"
	}
	m.list = append(m.list, name+"."+m.p.DType.Short())
}

// kernels lists the modules of the forward pass.
func (c *Config) kernels(p Problem) []string {
	m := modules{p: &p}
	if c.Impl != Unfused {
		m.add(c.kernel(p.DType), true)
		if c.Splits > 1 {
			m.add("attention_combine", false)
		}
		return m.list
	}
	m.add("attention_unfused_scores", true)
	softmax := "attention_unfused_softmax" // which no format has a part in
	if !p.Plain() {
		softmax += "_features"
	}
	m.list = append(m.list, softmax)
	m.add("attention_unfused_values", true)
	return m.list
}

// kernels lists the modules of the backward pass, which keeps tensors of these shapes.
func (c *BackwardConfig) kernels(caps *vk.Caps, p Problem, kept workspaceShapes) []string {
	if c.Impl == Unfused {
		p = hideUnseenKeys(p)
	}
	m := modules{p: &p}
	m.add("attention_bwd_delta", false)
	switch {
	case c.Impl == Unfused:
		m.add("attention_unfused_bwd_scores", true)
		m.add("attention_unfused_values", true)
		m.add("attention_unfused_keys", true)
	case c.fused():
		m.add(bwdFusedKernels[c.Impl], true)
		if kept[3] != nil {
			m.add("attention_bwd_fused_sum", false)
		}
	case c.stored():
		m.add(bwdStoredKernels[c.Impl], true)
		m.add(c.productsKernel(caps), true)
	default:
		names := c.names(p.DType)
		m.add(names.dkv, true)
		m.add(names.dq, true)
	}
	if p.Bias.On {
		m.add("attention_bwd_dbias", true)
	}
	if p.Sinks {
		m.list = append(m.list, "attention_bwd_dsinks_features")
	}
	if p.Sinks || kept[2] != nil {
		m.add("attention_bwd_sum", false)
	}
	return m.list
}
