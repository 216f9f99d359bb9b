package call

import (
	"maps"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Step is a call of attention.Step: of Decode with new keys. All angles are multiples of a right
// angle, so that rotated elements are exact and the bounds of Decode hold. Config may append.
type Step struct {
	Decode
	RoPE  attention.RoPE
	Steps int `json:",omitempty"` // one after the other, with the same new keys; 0 is 1. Angles are 0 if it is more
}

func (s *Step) problem() attention.AppendProblem {
	return attention.AppendProblem{DecodeProblem: s.DecodeProblem, RoPE: s.RoPE}
}

// Append returns the call of Append that Step begins with.
func (s *Step) Append() *Append { return &Append{Step: *s} }

// Validate implements Call. A sequence may have no room.
func (s *Step) Validate() error {
	if err := s.DecodeProblem.Validate(); err != nil {
		return err
	}
	return s.Append().Validate()
}

// Tidy gives each sequence pages or a row of its own, and rotations as many elements as rows have.
func (s *Step) Tidy() {
	tidy(&s.DecodeProblem, s.Lens)
	if s.PageSize > 0 {
		s.SeqKV = (s.SeqKV + s.PageSize - 1) / s.PageSize * s.PageSize
		s.Pages = max(s.Pages, s.Batch*s.SeqKV/s.PageSize)
	}
	if s.CacheRows > 0 {
		s.CacheRows = max(s.CacheRows, s.Batch)
	}
	if s.RoPE.Dims = min(s.RoPE.Dims/2*2, s.HeadDim); s.RoPE.Dims == 0 {
		s.RoPE.Interleaved = false
	}
	s.Hiding = s.Hiding && s.Bias.On
}

func (s *Step) Tensors() []Tensor {
	p, list := s.problem(), s.Decode.Tensors()
	for i := range list {
		switch t := &list[i]; t.Name {
		case "q", "k", "v":
			t.Role = Update
		case "k_scale", "v_scale":
			if p.Cache == attention.CacheQ8_0 {
				t.Role = Update
			}
		}
	}
	list = slices.Insert(list, 11,
		Tensor{Name: "new_k", File: "k_new", DType: p.DType, Shape: p.NewKShape(), Scale: s.Second, Main: true},
		Tensor{Name: "new_v", File: "v_new", DType: p.DType, Shape: p.NewVShape(), Main: true})
	return append(list, s.angles(&p)...)
}

// within returns the call of Decode whose sequences all have room.
func (s *Step) within() *Decode {
	d := s.Decode
	d.Lens = slices.Clone(s.Lens)
	for b, n := range d.Lens {
		d.Lens[b] = max(0, min(n, s.SeqKV-s.NewKeys))
	}
	return &d
}

// Adjust draws tables, hidden keys and angles.
func (s *Step) Adjust(x Values) {
	d := s.within()
	d.Tables(x)
	d.ownRows(x)
	d.store(x)
	d.hideInBias(x)
	for b, n := range s.Lens {
		x["seq_lens"][b] = float64(n)
	}
	rng := s.Rand(23)
	for range s.SeqKV * s.RoPE.Dims / 2 {
		turns := rng.IntN(4)
		x["cos"], x["sin"] = append(x["cos"], []float64{1, 0, -1, 0}[turns]), append(x["sin"], []float64{0, 1, 0, -1}[turns])
	}
}

func (s *Step) Want(x Values, _ kit.Pass) Outputs {
	out, after, state := wantStep(s, x, x, 0)
	for _, name := range appended {
		out[joined(name)] = Wanted{Want: after[name]}
	}
	if state != 0 {
		out["state"].Want[0] = state
		out["o"], out["lse"] = Wanted{Any: true}, Wanted{Any: true} // they are invalid
	}
	return out
}

// Sampled returns O and LSE of some rows.
func (s *Step) Sampled(x map[string][]float32) Outputs {
	out, _, _ := wantStep(s, x, s.tables(x), sampleOperations)
	return out
}

// wantStep returns the outputs of Decode after all steps, in most operations at the most, and the
// tensors and the State that Append leaves.
func wantStep[T ref.Float](s *Step, x map[string][]T, tables Values, most float64) (out Outputs, after map[string][]T, state float64) {
	after, tables = maps.Clone(x), maps.Clone(tables)
	for _, name := range appended {
		after[name] = slices.Clone(x[name])
	}
	a := s.Append()
	a.Lens = slices.Clone(a.Lens)
	for i := range max(s.Steps, 1) {
		for b := range a.Lens {
			a.Lens[b] += min(i, 1) * s.NewKeys
		}
		state = appendRows(a, after, tables, func(name string, at int, want, _ []float64) {
			for e, w := range want {
				after[name][at+e] = T(w)
			}
		})
	}
	last := *s
	last.Lens = a.Lens
	d := last.within()
	tables["seq_lens"] = nil
	for _, n := range d.Lens {
		tables["seq_lens"] = append(tables["seq_lens"], float64(n))
	}
	return wantDecode(d, after, tables, most), after, state
}

func (s *Step) Host() Host { return Host{Choose: s.choose, Bind: s.bind} }

func (s *Step) choose(caps *vk.Caps, _ kit.Pass) (kit.Plan, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return attention.ChooseStep(caps, s.problem(), s.options(nil))
}

// bind is Bind. The recording restores the lengths in the end.
func (s *Step) bind(t map[string]vk.Tensor, workspace *vk.Buffer, _ kit.Pass) Recording {
	x, p, o, more := cached[attention.StepTensors](&s.Decode, t), s.problem(), s.options(workspace), max(s.Steps, 1)-1
	return func(c *vk.Cmd) error {
		for range more {
			if err := attention.Step(c, x, p, o); err != nil {
				return err
			}
			if err := attention.Advance(c, x.SeqLens, p.NewKeys); err != nil {
				return err
			}
		}
		if err := attention.Step(c, x, p, o); err != nil || more == 0 {
			return err
		}
		return attention.Advance(c, x.SeqLens, -more*p.NewKeys)
	}
}
