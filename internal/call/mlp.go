package call

import (
	"cmp"
	"errors"
	"math"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	gemmref "github.com/flashvk/flashvk/internal/pipelines/gemm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	"github.com/flashvk/flashvk/internal/pipelines/mlp/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/mlp"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// MLP is a call of mlp.Forward or mlp.Backward: of one perceptron, or of heads. With Skinny it is a
// call of the kernel of package skinny that computes the same.
//
// With Backward the call is the backward pass alone, and the tensor pre does not follow from x.
type MLP struct {
	mlp.Problem
	Direction
	Impl         string
	Fused        mlp.Fused
	FusedConfig  string // "": the configuration in the table
	HeadsAtATime int    `json:"AtATime"`
	Products     bool

	Skinny         bool
	Config         string // of Skinny; "": the table's
	TransA, TransB bool
	Alpha          float64 // a power of two
	Data
}

func (m *MLP) Validate() error {
	if m.Skinny && m.Heads == 0 {
		return errors.New("call: a skinny kernel has heads")
	}
	return cmp.Or(m.Problem.Validate(), mlp.Options{Fused: m.Fused, FusedConfig: m.FusedConfig, HeadsAtATime: m.HeadsAtATime}.Validate())
}

// Tensors implements Call. Elements of pre are about Second, products of hidden units and w2 about 1.
func (m *MLP) Tensors() []Tensor {
	if m.Skinny {
		return m.skinnyTensors()
	}
	p, t, kept := m.Problem, m.DType, Output
	if m.Backward {
		kept = Input
	}
	first := OrOne(m.Second) / OrOne(m.Magnitude) / math.Sqrt(float64(p.In))
	return []Tensor{
		{Name: "x", DType: t, Shape: p.XShape(), Scale: m.Magnitude, Main: true},
		{Name: "w1", DType: t, Shape: p.W1Shape(), Scale: first},
		{Name: "w2", DType: t, Shape: p.W2Shape(), Scale: 1 / math.Sqrt(float64(p.Hidden))},
		{Name: "dy", DType: t, Shape: p.YShape(), Role: Upstream},
		{Name: "pre", DType: t, Shape: p.PreShape(), Scale: min(OrOne(m.Second), 10), Role: kept, Lines: true, Off: p.Keep == mlp.KeepNothing},
		{Name: "hidden", DType: t, Shape: p.PreShape(), Role: kept, Lines: true, Off: p.Keep != mlp.KeepHidden},
		{Name: "y", DType: m.y(), Shape: p.YShape(), Role: Output, Once: true},
		{Name: "dx", DType: t, Shape: p.XShape(), Role: Gradient},
		{Name: "dw1", DType: p.GradDType(), Shape: p.W1Shape(), Role: Gradient},
		{Name: "dw2", DType: p.GradDType(), Shape: p.W2Shape(), Role: Gradient},
	}
}

// y returns the format of y.
func (m *MLP) y() dtype.DType {
	if m.Float32 {
		return dtype.Float32
	}
	return m.DType
}

// inputs returns what the reference of a pass reads.
func (m *MLP) inputs(x Values, pass kit.Pass) (in ref.Inputs) {
	Bind(x, &in)
	if pass == kit.Forward {
		in.DY = nil
	}
	if !m.Backward || m.Keep == mlp.KeepNothing {
		in.Pre = nil
	}
	if m.TransA {
		in.X = Turn(in.X, m.In, m.Tokens)
	}
	if m.TransB {
		in.W1 = Turn(in.W1, m.Hidden, m.In)
	}
	if m.Alpha != 0 { // a power of two: before and after the product are the same
		in.X = slices.Clone(in.X)
		scaleBy(in.X, m.Alpha)
	}
	return in
}

// A mlpPart is a part of a call that has the same outputs as the whole.
type mlpPart struct {
	p           mlp.Problem
	in          ref.Inputs
	rows, units []int // nil: all
}

// parts returns the part with some tokens, and for the gradients of weights the part with some units
// of each head, as large a share of all.
func (m *MLP) parts(in ref.Inputs) []mlpPart {
	tokens := mlpPart{p: m.Problem, in: in}
	units := tokens
	if tokens.rows = SampleRows(m.Rand(30), m.Tokens, m.Sample); tokens.rows != nil {
		tokens.p, tokens.in = ref.Tokens(tokens.rows, in, m.Problem)
	}
	if tokens.rows == nil || in.DY == nil {
		return []mlpPart{tokens}
	}
	if units.units = SampleRows(m.Rand(31), m.Hidden, max(4, m.Sample*m.Hidden/m.Tokens)); units.units != nil {
		units.p, units.in = ref.Units(units.units, in, m.Problem)
	}
	return []mlpPart{tokens, units}
}

// Adjust implements Call: float16 holds the results, and hidden is silu(pre).
func (m *MLP) Adjust(x Values) {
	in := m.inputs(x, m.Pass())
	for again := m.DType == dtype.Float16 || m.GradDType() == dtype.Float16; again; {
		again = slices.ContainsFunc(m.parts(in), func(s mlpPart) bool { return m.lower(in, s) })
	}
	if x["w1"] = in.W1; m.TransB {
		x["w1"] = Turn(in.W1, m.In, m.Hidden)
	}
	if x["hidden"] != nil {
		for i, v := range x["pre"] {
			x["hidden"][i] = float64(m.DType.Round(float32(gemmref.SiLU(v))))
		}
	}
}

// lower divides inputs by powers of two if float16 does not hold the results of a part.
func (m *MLP) lower(in ref.Inputs, s mlpPart) bool {
	half, grad := m.DType == dtype.Float16, m.GradDType() == dtype.Float16
	out := ref.Compute(s.in, s.p)
	if half && (Lower(in.W1, m.DType, tolerance.Largest(out.Pre)) || Lower(in.W2, m.DType, tolerance.Largest(out.Y))) {
		return true
	}
	most := 0.0
	if half {
		most = max(tolerance.Largest(out.DPre), tolerance.Largest(out.DX))
	}
	if grad {
		most = max(most, tolerance.Largest(out.DW1), tolerance.Largest(out.DW2))
	}
	return Lower(in.DY, m.DType, most)
}

func (m *MLP) Want(x Values, pass kit.Pass) Outputs {
	parts := m.parts(m.inputs(x, pass))
	list := parts[0].want()
	for name, w := range list {
		if parts[0].rows != nil && len(w.Want) > 0 {
			w.Sample = Elements(parts[0].rows, len(w.Want)/len(parts[0].rows))
		}
		switch {
		case name == "dpre":
			w.pad(m.Hidden, m.padded())
		case (name == "pre" || name == "hidden") && m.Units > m.Hidden:
			w.pad(m.Hidden, m.Units)
		}
		list[name] = w
	}
	if len(parts) > 1 {
		units := parts[1].want()
		list["dw1"], list["dw2"] = units["dw1"].of(m.columns(parts[1].units)), units["dw2"].of(m.rows(parts[1].units))
	}
	return list
}

// want returns the outputs of a part, without what they are a sample of.
func (s *mlpPart) want() Outputs {
	want := ref.Compute(s.in, s.p)
	return Pair(want, ref.NewBounds(want, ref.Plain(s.in, s.p), ref.Spread(s.in, nil, s.p), s.p))
}

// columns returns the elements of dw1 of some units; nil of nil.
func (m *MLP) columns(units []int) (at []int) {
	for row := range max(m.Heads, 1) * m.In {
		for _, u := range units {
			at = append(at, row*m.Hidden+u)
		}
	}
	return at
}

// rows returns the elements of dw2 of some units; nil of nil.
func (m *MLP) rows(units []int) (at []int) {
	for k := range max(m.Heads, 1) {
		for _, u := range units {
			at = append(at, Elements([]int{k*m.Hidden + u}, m.Out)...)
		}
	}
	return at
}

func (m *MLP) Host() Host {
	if m.Skinny {
		return engineHost(engineOptions(m.Impl, m.Config), m.Workspace, m.chooseSkinny, m.bindSkinny)
	}
	return hosted(m, m.Problem, mlp.Choose, mlp.Forward, mlp.Backward)
}

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

// product returns the problem of the kernel.
func (m *MLP) product() engine.Problem {
	p := engine.Problem{
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
	return p
}

// engineOptions returns what parses the options of a path and of a configuration, "" for the table's.
func engineOptions(impl, config string) func() (engine.Options, error) {
	return func() (opt engine.Options, err error) {
		if opt.Impl, err = engine.ParseImpl(cmp.Or(impl, "auto")); err != nil || config == "" {
			return opt, err
		}
		c, err := engine.ParseConfig(config)
		if opt.Config = &c; err == nil && opt.Impl != engine.Auto && opt.Impl != c.Impl {
			err = engine.Unsupported("path %v: --config is of path %v", opt.Impl, c.Impl)
		}
		return opt, err
	}
}

// chooseSkinny is Choose for a kernel of package skinny, bindSkinny Bind.
func (m *MLP) chooseSkinny(caps *vk.Caps, opt engine.Options) (_ kit.Plan, err error) {
	var p skinny.Plan
	x, kernel := m.product(), "gemm_skinny_bwd"
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

func (m *MLP) bindSkinny(t map[string]vk.Tensor, opt engine.Options) Recording {
	heads := func(name string) vk.Tensor {
		if x := t[name]; !x.IsZero() {
			return x.Permute(1, 0, 2)
		}
		return vk.Tensor{}
	}
	of := skinny.Tensors{A: shared(t["x"], m.Heads), B: t["w1"], W: t["w2"], Y: heads("y"), Pre: heads("pre"), DY: heads("dy"), DPre: heads("dpre"), DW: t["dw2"]}
	out, kept, x := m.Out, m.kept(), m.product()
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
