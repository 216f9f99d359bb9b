package attention

import (
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/internal/vk/table"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// A Plan says how a pass of a problem runs on a device.
type Plan struct {
	Config   Config         // of the forward pass; zero if that takes the kernels of Decode
	Backward BackwardConfig // of the backward pass
	Decode   DecodeConfig   // of Decode, or of a forward pass that takes its kernels
	Origin   kit.Origin     // where the configuration comes from

	name    string
	bytes   int64
	kernels []string
}

// String names the configuration of the pass.
func (p Plan) String() string { return p.name }

// Workspace returns the bytes of Options.Workspace. For Backward they are the sum of
//
//	rows of each head          8 per row
//	Sinks                      4 per 2048 rows of each head
//	Bias that rows share       4 per key of each query head
//	BackwardConfig.Stored      4 per row and key of the heads of a chunk, except for blocks that a
//	                           causal mask or a window hides, packed sequences counting as the
//	                           longest; 4 per element of dK and dV of its key heads if a chunk has
//	                           a part of a group of heads; and 4 per element of a Bias with Rows
//	                           that heads of several chunks share
//
// Each part but the last is rounded up to 256. The forward pass needs none. The unfused path and
// Config.Splits always take memory of the Cmd.
func (p Plan) Workspace() int64 { return p.bytes }

// Kernels lists the modules that run, in order, for a call with all gradients.
func (p Plan) Kernels() []string { return p.kernels }

// Choose returns how a pass runs for p on a device. Its error wraps vk.ErrUnsupported if no path, or
// not the forced one, handles p.
func Choose(caps *vk.Caps, p Problem, pass kit.Pass, opt Options) (plan Plan, err error) {
	var origin table.Origin
	switch pass {
	case kit.Forward:
		if plan, err = planForward(caps, &p, &opt, nil); err != nil {
			return Plan{}, err
		}
		plan.name, plan.kernels = plan.Config.String(), plan.Config.kernels(p)
		if plan.Decode != (DecodeConfig{}) {
			plan.name, plan.kernels = "decode "+plan.Decode.String(), plan.Decode.kernels(&DecodeProblem{Problem: p})
		}
		return plan, nil
	case kit.Backward:
		if plan.Backward, origin, err = backwardConfig(caps, p, opt); err != nil {
			return Plan{}, err
		}
		shapes := plan.Backward.workspaceShapes(caps, &p)
		plan.name, plan.bytes, plan.kernels = plan.Backward.String(), workspaceBytes(shapes), plan.Backward.kernels(caps, p, shapes)
	default:
		return Plan{}, argument.Pass("attention", pass)
	}
	plan.Origin = origin
	return plan, nil
}

// planForward is Choose for the forward pass. Asks finds out what only the device knows; nil: the
// plan goes by caps.
func planForward(caps *vk.Caps, p *Problem, opt *Options, asks layoutQuestion) (plan Plan, err error) {
	if err := p.Validate(); err != nil {
		return plan, err
	}
	decode, origin, decodes, err := forwardAsDecode(caps, p, opt)
	if err != nil {
		return plan, err
	}
	if decodes && asks != nil && opt.DecodeConfig == nil {
		decodes = decode.checkLayout(caps, &DecodeProblem{Problem: *p}, asks) == nil
	}
	if decodes {
		return Plan{Decode: decode, Origin: origin}, nil
	}
	plan.Config, origin, err = forwardConfig(caps, p, opt)
	plan.Origin = origin
	return plan, err
}

// Supports returns nil if a device computes a pass of p. Otherwise the error wraps vk.ErrUnsupported
// and says why not.
func Supports(caps *vk.Caps, p Problem, pass kit.Pass, opt Options) error {
	_, err := Choose(caps, p, pass, opt)
	return err
}

// Workspace returns Plan.Workspace of the plan that Choose returns.
func Workspace(caps *vk.Caps, p Problem, pass kit.Pass, opt Options) (int64, error) {
	plan, err := Choose(caps, p, pass, opt)
	return plan.Workspace(), err
}

// onMatrices reports whether a path uses cooperative matrices.
func onMatrices(i Impl) bool { return i == CoopMat2 || i == CoopMat }

// modules lists the modules that a problem runs.
type modules struct {
	p    *Problem
	list []string
}

// add adds a module of the problem's format. With features it is the module with features, if the
// problem has any.
func (m *modules) add(name string, features bool) {
	if features {
		name = moduleOf(name, m.p)
	}
	m.list = append(m.list, name+"."+m.p.DType.Short())
}

// kernels lists the modules of the forward pass.
func (c *Config) kernels(p Problem) []string {
	m := modules{p: &p}
	if c.Impl != Unfused {
		if p.Quant != dtype.NoQuant {
			m.add("attention_quantize", true)
		}
		m.add(c.kernel(&p), true)
		if c.Splits > 1 {
			m.add("attention_combine", false)
		}
		return m.list
	}
	m.add("attention_unfused_scores", true)
	m.list = append(m.list, moduleOf("attention_unfused_softmax", &p)) // the same for all formats
	m.add("attention_unfused_values", true)
	return m.list
}

// kernels lists the modules of the backward pass. kept are the shapes of its workspace.
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
		m.add(c.Impl.kernel(bwdFused, p.DType), true)
	case c.stored():
		m.add(c.storeKernel(p.DType), true)
		m.add(c.productsKernel(caps, &p), false)
	default:
		m.add(c.Impl.kernel("attention_bwd_dkv", p.DType), true)
		m.add(c.Impl.kernel("attention_bwd_dq", p.DType), true)
	}
	if c.biasOfStored(&p) {
		m.add(storedBias, false)
	} else if p.Bias.On {
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
