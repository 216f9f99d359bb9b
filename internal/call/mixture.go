package call

import (
	"cmp"
	"math"
	"slices"

	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/engine"
	"github.com/flashvk/flashvk/internal/pipelines/gemm/skinny"
	gmmref "github.com/flashvk/flashvk/internal/pipelines/gmm/ref"
	"github.com/flashvk/flashvk/internal/pipelines/mixture/ref"
	"github.com/flashvk/flashvk/internal/pipelines/tolerance"
	"github.com/flashvk/flashvk/pipelines/gmm"
	"github.com/flashvk/flashvk/pipelines/mixture"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Mixture is a call of mixture.Forward or mixture.Backward. With Direct it is a call of
// skinny.Mixture and gmm.Merge.
type Mixture struct {
	mixture.Problem
	Direction
	Impl         string
	Groups       int
	HeadsAtATime int `json:"AtATime"`
	Outputs      bool
	LogP, Loss   bool    // which of both is written
	DLoss        float64 // 0: none is given

	Direct         bool
	Config         string // of Direct; "": the table's
	TransA, TransB bool
	Data
}

// Tidy gives a call an output.
func (m *Mixture) Tidy() { m.LogP = m.LogP || !m.Loss }

func (m *Mixture) Validate() error {
	return cmp.Or(mixture.Options{Groups: m.Groups, HeadsAtATime: m.HeadsAtATime}.Validate(), m.Problem.Validate())
}

// Tensors implements Call. Elements of pre and of the outputs of heads are about 1, or Second.
func (m *Mixture) Tensors() []Tensor {
	p, t, xs, w1 := m.Problem, m.DType, m.XShape(), m.W1Shape()
	if m.TransA {
		xs = []int{p.In, p.Tokens}
	}
	if m.TransB {
		w1 = []int{p.Heads, p.Hidden, p.In}
	}
	states := []int{max(1, min(m.Groups, p.Heads)), p.Tokens, gmm.StateSize}
	place := &guard.Place{Offset: 64, RowGap: 4 * (p.Tokens % 3), MatrixGap: 8}
	return []Tensor{
		{Name: "x", DType: t, Shape: xs, Scale: m.Magnitude, Main: true},
		{Name: "w1", DType: t, Shape: w1, Scale: 1 / OrOne(m.Magnitude) / math.Sqrt(float64(p.In))},
		{Name: "w2", DType: t, Shape: p.W2Shape(), Scale: OrOne(m.Second) / math.Sqrt(float64(p.Hidden))},
		{Name: "y", Shape: []int{p.Tokens}},
		{Name: "dloss", Shape: []int{1}, Role: Upstream, Off: m.DLoss == 0},
		{Name: "log_p", Shape: []int{p.Tokens}, Role: Output, Once: true, Off: !m.LogP},
		{Name: "loss", Shape: []int{1}, Role: Output, Once: true, Off: !m.Loss},
		{Name: "states", Shape: states, Role: Output, Once: true, Off: !m.Direct, Place: place},
		{Name: "dx", DType: t, Shape: xs, Role: Gradient},
		{Name: "dw1", DType: p.GradDType(), Shape: w1, Role: Gradient},
		{Name: "dw2", DType: p.GradDType(), Shape: p.W2Shape(), Role: Gradient},
	}
}

// Adjust implements Call. Logarithms of deviations are a third of other outputs, so that gradients
// are more than roundoff, and w2 is so small that they are within what problems are for. Float16
// holds the gradients: a dloss makes them smaller.
func (m *Mixture) Adjust(x Values) {
	lower := func(from, step int, by float64) {
		for i := from; i < len(x["w2"]); i += step {
			x["w2"][i] = float64(m.DType.Round(float32(x["w2"][i] / by)))
		}
	}
	lower(2, 3, 3)
	loud := m.loudest(x)
	for range 20 {
		s := m.part(x, loud)
		out := ref.Outputs(s.in, s.p)
		if tolerance.Largest(out.LogSigma) < 8 && max(tolerance.Largest(out.Mu), tolerance.Largest(out.Logit)) < 1000 {
			break
		}
		lower(0, 1, 4)
	}
	if m.Backward {
		s := m.sample(x)
		if most := s.largest(); most > Roomy {
			m.DLoss = OrOne(m.DLoss) * math.Ldexp(1, -int(math.Ceil(math.Log2(most/Roomy))))
		}
	}
	if m.DLoss != 0 {
		x["dloss"] = []float64{m.DLoss}
	}
}

// A mixtureSample is the part of a call that has some of its tokens.
type mixtureSample struct {
	p     mixture.Problem
	in    ref.Inputs
	dloss float64
	rows  []int // nil: all
}

// loudest returns the tokens of the sample, and others whose outputs are likely the largest: a token that
// nobody looks at makes all of dw1 infinite, too. It is nil for all tokens.
func (m *Mixture) loudest(x Values) []int {
	rows := SampleRows(m.Rand(30), m.Tokens, m.Sample)
	if rows == nil {
		return nil
	}
	norms := make([]float64, m.Tokens)
	for i, e := range x["x"] {
		t := i / m.In
		if m.TransA {
			t = i % m.Tokens
		}
		norms[t] += e * e
	}
	all := make([]int, m.Tokens)
	for t := range all {
		all[t] = t
	}
	slices.SortStableFunc(all, func(a, b int) int { return cmp.Compare(norms[b], norms[a]) })
	rows = append(rows, all[:min(64, m.Tokens)]...)
	slices.Sort(rows)
	return slices.Compact(rows)
}

// sample returns the part of the call that the reference computes.
func (m *Mixture) sample(x Values) *mixtureSample {
	return m.part(x, SampleRows(m.Rand(30), m.Tokens, m.Sample))
}

// part returns the part of the call that has some rows, nil: all.
func (m *Mixture) part(x Values, rows []int) *mixtureSample {
	s := &mixtureSample{p: m.Problem, dloss: OrOne(m.DLoss), rows: rows}
	Bind(x, &s.in)
	if x["dloss"] != nil {
		s.dloss = x["dloss"][0]
	}
	if m.TransA {
		s.in.X = Turn(s.in.X, m.In, m.Tokens)
	}
	if m.TransB {
		s.in.W1 = Turn(s.in.W1, m.Hidden, m.In)
	}
	if s.rows != nil {
		s.p, s.in, s.dloss = ref.Tokens(s.rows, s.in, s.dloss, m.Problem)
	}
	return s
}

// largest returns the largest number that float16 has to hold, 0 without float16. The largest of a
// sample counts as a quarter of the largest of all.
func (s *mixtureSample) largest() (most float64) {
	want := ref.Backward(s.in, s.dloss, s.p)
	if s.p.DType == dtype.Float16 {
		dy := gmmref.Backward(ref.Outputs(s.in, s.p), s.dloss, s.p.Mixtures())
		most = max(tolerance.Largest(dy.Logit), tolerance.Largest(dy.Mu), tolerance.Largest(dy.LogSigma), tolerance.Largest(want.DX))
	}
	if s.p.GradDType() == dtype.Float16 {
		most = max(most, tolerance.Largest(want.DW1), tolerance.Largest(want.DW2))
	}
	if s.rows != nil {
		most *= 4
	}
	return most
}

// Want implements Call. What is a sum over all tokens only has to be written where some are a sample.
func (m *Mixture) Want(x Values, pass kit.Pass) Outputs {
	s := m.sample(x)
	unknown := Wanted{Want: []float64{}, Sample: []int{}}
	if pass == kit.Forward {
		logP, loss := ref.Forward(s.in, s.p)
		b := ref.ForwardBoundsOfFew(s.in, s.p)
		list := Outputs{"logp": {Want: logP, Bound: b.LogP, Sample: s.rows}, "loss": {Want: []float64{loss}, Bound: b.Loss}, "states": {Any: true}}
		if s.rows != nil {
			list["loss"] = unknown
		}
		return list
	}
	want := ref.Backward(s.in, s.dloss, s.p)
	list := Pair(want, ref.BackwardBoundsOfFew(s.in, want, s.dloss, s.p))
	if s.rows != nil {
		list["dx"] = list["dx"].of(Elements(s.rows, m.In))
		list["dw1"], list["dw2"] = unknown, unknown
	}
	return list
}

func (m *Mixture) Host() Host {
	if m.Direct {
		return engineHost(engineOptions(m.Impl, m.Config), m.Workspace, m.chooseDirect, m.bindDirect)
	}
	return hosted(m, m.Problem, mixture.Choose, mixture.Forward, mixture.Backward)
}

// product returns the problem of skinny.Mixture.
func (m *Mixture) product() engine.Problem {
	return engine.Problem{
		Batch: m.Heads, M: m.Tokens, N: m.Hidden, K: m.In, DType: m.DType, Out: dtype.Float32,
		TransA: m.TransA, TransB: m.TransB, Activation: engine.SiLU,
	}
}

// chooseDirect is Choose for the kernel of package skinny, and gmm.Merge on its states; bindDirect is Bind.
func (m *Mixture) chooseDirect(caps *vk.Caps, opt engine.Options) (kit.Plan, error) {
	plan, err := skinny.ChooseMixture(caps, m.product(), opt)
	return simplePlan{plan.Config.String(), plan.Workspace(), []string{"gemm_mixture", "gmm_merge"}}, err
}

func (m *Mixture) bindDirect(t map[string]vk.Tensor, opt engine.Options) Recording {
	of := skinny.MixtureTensors{A: shared(t["x"], m.Heads), B: t["w1"], W: t["w2"], Y: t["y"], States: t["states"]}
	p, merged, mixtures := m.product(), gmm.Tensors{LogP: t["log_p"], Loss: t["loss"]}, m.Mixtures()
	return func(c *vk.Cmd) error {
		if err := skinny.Mixture(c, of, p, opt); err != nil {
			return err
		}
		return gmm.Merge(c, of.States, merged, mixtures, gmm.Options{})
	}
}
