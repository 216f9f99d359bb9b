package call

import (
	"fmt"
	"maps"
	"slices"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// Step is a call of attention.Step: of Decode with new keys. All angles are multiples of a right
// angle, so that rotated elements are exact and the bounds are those of Decode. Config may append.
type Step struct {
	Decode
	RoPE attention.RoPE
}

// String says what the call is in a line.
func (s *Step) String() string {
	return fmt.Sprintf("%s/rope=%d,%v", s.Decode.String(), s.RoPE.Dims, s.RoPE.Interleaved)
}

func (s *Step) problem() attention.AppendProblem {
	return attention.AppendProblem{DecodeProblem: s.DecodeProblem, RoPE: s.RoPE}
}

// append returns the call of Append that Step begins with.
func (s *Step) append() *Append {
	return &Append{AppendProblem: s.problem(), Lens: s.Lens, KeysFirst: s.KeysFirst, Scales: s.Scales, Data: s.Data}
}

// Validate implements Call. A sequence may have no room.
func (s *Step) Validate() error {
	if err := s.DecodeProblem.Validate(); err != nil {
		return err
	}
	return s.append().Validate()
}

// Tidy is that of Append.
func (s *Step) Tidy() {
	p := s.problem()
	tidyAppend(&p, s.Lens)
	s.DecodeProblem, s.RoPE, s.Hiding = p.DecodeProblem, p.RoPE, s.Hiding && p.Bias.On
}

// Tensors implements Call.
func (s *Step) Tensors() []Tensor {
	p, list := s.problem(), s.Decode.Tensors()
	for i := range list[:3] { // q, k, v
		list[i].Role = Update
	}
	list = slices.Insert(list, 11,
		Tensor{Name: "new_k", DType: p.DType, Shape: p.NewKShape(), Scale: s.Second, Main: true},
		Tensor{Name: "new_v", DType: p.DType, Shape: p.NewVShape(), Main: true})
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
	d.tables(x)
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

// Want implements Call.
func (s *Step) Want(x Values, pass kit.Pass) Outputs {
	d, after, appended := s.within(), maps.Clone(x), s.append().Want(x, pass)
	for _, name := range []string{"q", "k", "v"} {
		after[name] = appended[name].Want
	}
	after["seq_lens"] = nil
	for _, n := range d.Lens {
		after["seq_lens"] = append(after["seq_lens"], float64(n))
	}
	out := d.Want(after, pass)
	for _, name := range []string{"q", "k", "v"} {
		out[name] = Wanted{Want: after[name]}
	}
	if bad := appended["state"].Want[0]; bad != 0 {
		out["state"].Want[0] = bad
		out["o"], out["lse"] = Wanted{Any: true}, Wanted{Any: true} // they are invalid
	}
	return out
}

// Choose implements Call.
func (s *Step) Choose(caps *vk.Caps, _ kit.Pass) (kit.Plan, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	return attention.ChooseStep(caps, s.problem(), s.options(nil))
}

// Record implements Call.
func (s *Step) Record(c *vk.Cmd, t map[string]vk.Tensor, workspace *vk.Buffer, _ kit.Pass) error {
	return attention.Step(c, cached[attention.StepTensors](&s.Decode, t), s.problem(), s.options(workspace))
}
