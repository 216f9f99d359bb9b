package bench

import (
	"context"
	"fmt"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/vk"
)

// TuneAttention returns the choices of a forward pass of attention. Its candidates are of
// type attention.Config.
func TuneAttention(p attention.Problem) Tunable { return tunableAttention{p} }

type tunableAttention struct{ p attention.Problem }

func (t tunableAttention) Title() string { return "attention forward, " + Describe(t.p) }

func (t tunableAttention) Candidates(caps *vk.Caps, impl string) ([]Candidate, error) {
	i, err := attention.ParseImpl(impl)
	if err != nil {
		return nil, err
	}
	if _, err := attention.Choose(caps, t.p, attention.Options{Impl: i}); err != nil {
		return nil, err
	}
	return Candidates(attention.Candidates(caps, t.p, i)), nil
}

func (t tunableAttention) Variants(caps *vk.Caps, c Candidate) []Candidate {
	return Candidates(attention.Variants(caps, t.p, c.(attention.Config)))
}

// Row has the format behind it, of which the table knows nothing.
func (t tunableAttention) Row(caps *vk.Caps, c Candidate, fill float64) string {
	return fmt.Sprintf("%s // %v", attention.TableRow(caps, t.p, c.(attention.Config), fill), t.p.DType)
}

func (t tunableAttention) Fill(caps *vk.Caps, c Candidate) float64 {
	return c.(attention.Config).Fill(caps, t.p)
}

// Order has causal rows first: the others match causal problems, too.
func (t tunableAttention) Order(c Candidate) []int {
	all := 1
	if t.p.Causal {
		all = 0
	}
	return []int{int(c.(attention.Config).Impl), int(t.p.DType), t.p.HeadDim, all}
}

func (t tunableAttention) contest(d *vk.Device) contest {
	return &attentionContest{newAttentionRun(d, t.p)}
}

// attentionContest is the contest of paths of attention.
type attentionContest struct{ *attentionRun }

func (r *attentionContest) count() int { return len(r.sets) }

func (r *attentionContest) result(impl string) Result {
	return Result{Kernel: r.pass.kernel(), Impl: impl, Problem: r.p}
}

func (r *attentionContest) record(c Candidate) func(*vk.Cmd, int) error {
	config := c.(attention.Config)
	return r.attentionRun.record(attention.Options{Config: &config})
}

func (r *attentionContest) check(ctx context.Context, record func(*vk.Cmd, int) error, x *Result) (Target, error) {
	impl, err := attention.ParseImpl(x.Impl)
	if err != nil {
		return Target{}, err
	}
	return r.attentionRun.check(ctx, impl, record, x)
}
