package call

import (
	"cmp"

	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// kept reports whether the kernel reads pre instead of x and w1.
func (m *MLP) kept() bool { return m.Backward && m.Keep == mlp.KeepPre }

// skinnyTensors returns the tensors of the kernel of package skinny. All heads share x; tensors by
// token have the heads as their second axis.
func (m *MLP) skinnyTensors() []Tensor {
	of := *m
	of.Skinny = false
	list := of.Tensors()
	for i := range list {
		switch t := &list[i]; t.Name {
		case "x":
			if t.Once = m.kept(); m.TransA {
				t.Shape = []int{m.In, m.Tokens}
			}
		case "w1":
			if t.Once = m.kept(); m.TransB {
				t.Shape = []int{m.Heads, m.Hidden, m.In}
			}
		case "dx", "dw1":
			t.Off = true
		}
	}
	return append(list, Tensor{Name: "dpre", DType: m.DType, Shape: []int{m.Tokens, m.Heads, m.padded()}, Role: Gradient, Align: 8})
}

// padded returns how many columns dpre has: the hidden units, and zeros behind.
func (m *MLP) padded() int { return (m.Hidden + 7) / 8 * 8 }

// product returns the problem of the kernel, with its options.
func (m *MLP) product() (p engine.Problem, opt engine.Options, err error) {
	p = engine.Problem{
		Batch: m.Heads, M: m.Tokens, N: m.Hidden, K: m.In, DType: m.DType, Out: m.y(),
		TransA: m.TransA, TransB: m.TransB, Alpha: m.Alpha, Activation: engine.SiLU,
	}
	switch {
	case m.kept():
		p = engine.Problem{Batch: m.Heads, M: m.Tokens, N: m.Hidden, K: m.Out, TransB: true, DType: m.DType, Out: m.GradDType(), Activation: engine.TimesDSiLU}
	case m.Backward:
		p.Out = m.GradDType()
	case m.Keep == mlp.KeepPre:
		p.Activation = engine.SiLUKeep
	}
	opt, err = engineOptions(m.Impl, m.Config)
	return p, opt, err
}

// engineOptions returns the options of a path and of a configuration, "" for the table's.
func engineOptions(impl, config string) (opt engine.Options, err error) {
	if opt.Impl, err = engine.ParseImpl(cmp.Or(impl, "auto")); err != nil || config == "" {
		return opt, err
	}
	c, err := engine.ParseConfig(config)
	if opt.Config = &c; err == nil && opt.Impl != engine.Auto && opt.Impl != c.Impl {
		err = engine.Unsupported("path %v: --config is of path %v", opt.Impl, c.Impl)
	}
	return opt, err
}

// chooseSkinny is Choose for a kernel of package skinny, bindSkinny Bind.
func (m *MLP) chooseSkinny(caps *vk.Caps, _ kit.Pass) (kit.Plan, error) {
	x, opt, err := m.product()
	if err != nil {
		return nil, err
	}
	var p skinny.Plan
	kernel := "gemm_skinny_bwd"
	switch {
	case m.kept():
		p, err = skinny.ChooseKept(caps, x)
		kernel = "gemm_skinny_dsilu"
	case m.Backward:
		p, err = skinny.ChooseBackward(caps, x, m.Out, opt)
	default:
		p, err = skinny.ChooseForward(caps, x, m.Out, opt)
		kernel = "gemm_skinny"
	}
	return simplePlan{p.Config.String(), p.Workspace(), p.Kernels(kernel)}, err
}

// WorkspaceOffset is the offset of a workspace in its buffer, in bytes.
func (m *MLP) WorkspaceOffset() int { return offsetOf(m.Skinny && m.Workspace) }

// offsetOf returns the offset of the workspace of a product that is given one.
func offsetOf(given bool) int {
	if given {
		return 16 * 5
	}
	return 0
}

func (m *MLP) bindSkinny(t map[string]vk.Tensor, workspace *vk.Buffer, _ kit.Pass) Recording {
	x, opt, err := m.product()
	if err != nil {
		return failed(err)
	}
	opt.Workspace, opt.WorkspaceOffset = workspace, int64(m.WorkspaceOffset())
	heads := func(name string) vk.Tensor {
		if x := t[name]; !x.IsZero() {
			return x.Permute(1, 0, 2)
		}
		return vk.Tensor{}
	}
	of := skinny.Tensors{A: shared(t["x"], m.Heads), B: t["w1"], W: t["w2"], Y: heads("y"), Pre: heads("pre"), DY: heads("dy"), DPre: heads("dpre"), DW: t["dw2"]}
	out, kept := m.Out, m.kept()
	if !m.Backward {
		return func(c *vk.Cmd) error { return skinny.Forward(c, of, out, x, opt) }
	}
	of.DPre.Shape = []int{m.Heads, m.Tokens, m.Hidden}
	return func(c *vk.Cmd) (err error) {
		var s engine.Steps
		if kept {
			s, err = skinny.BackwardKept(c, of, x, opt)
		} else {
			s, err = skinny.Backward(c, of, out, x, opt)
		}
		if err != nil {
			return err
		}
		return s.Record(c)
	}
}

// shared returns a matrix that all heads share.
func shared(a vk.Tensor, heads int) vk.Tensor {
	if !a.IsZero() {
		a.Shape, a.Strides = []int{heads, a.Shape[0], a.Shape[1]}, []int{0, a.Strides[0], 1}
	}
	return a
}
