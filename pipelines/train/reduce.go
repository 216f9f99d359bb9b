package train

import (
	"cmp"
	"context"
	"slices"

	"github.com/flashvk/flashvk/vk"
)

// A bucket is the gradients that are complete after some steps of a program.
type bucket struct {
	end       int // steps
	gradients []vk.Tensor
}

// buckets divides a plan where gradients are reduced. Gradients that are added up over batches are
// complete at the end.
func (m *Model) buckets(t *Tape, pass Pass) []bucket {
	var list []bucket
	whole := m.o.batches() > 1 || t.o.Bucket <= 0 || t.o.Reduce == nil || pass < Train
	last, bytes := bucket{end: t.prog.Steps()}, int64(0)
	params := slices.DeleteFunc(m.trained(), func(p Param) bool { return t.complete[p.Name] == 0 })
	slices.SortStableFunc(params, func(a, b Param) int {
		return cmp.Compare(t.complete[a.Name], t.complete[b.Name])
	})
	for i, p := range params {
		s := m.layout.slots[p.Name]
		last.gradients = append(last.gradients, s.of(s.group.total))
		bytes += 4 * int64(p.span())
		end := t.complete[p.Name]
		if whole || bytes < t.o.Bucket || i == len(params)-1 || t.complete[params[i+1].Name] == end {
			continue
		}
		list = append(list, bucket{end, last.gradients})
		last.gradients, bytes = nil, 0
	}
	return append(list, last)
}

// adjust changes a loss scale that follows the gradients (Options.GoodSteps), for which it waits for
// the last step.
func (m *Model) adjust(ctx context.Context) error {
	if m.o.GoodSteps == 0 || m.adam == nil {
		return nil
	}
	steps, err := m.Steps(ctx)
	if err != nil {
		return err
	}
	skipped, err := m.Skipped(ctx)
	scale := m.scale
	switch {
	case err != nil:
		return err
	case skipped > m.skipped:
		scale /= 2
	case steps-m.since >= m.o.GoodSteps:
		scale *= 2
	default:
		return nil
	}
	m.since, m.skipped = steps, skipped
	return m.setScale(ctx, scale)
}

// setScale multiplies the moments as the loss scale changes, so that no step does. A scale at the end
// of its range stays, and so does one that a moment has no room for.
func (m *Model) setScale(ctx context.Context, scale float64) error {
	if !validScale(scale) {
		return nil
	}
	ratio := float32(scale / m.scale)
	moments := map[*vk.Tensor][]float32{}
	for _, g := range m.layout.groups {
		for t, factor := range map[*vk.Tensor]float32{&g.m: ratio, &g.v: ratio * ratio} {
			if t.IsZero() {
				continue
			}
			x := make([]float32, g.size)
			if err := t.Download(ctx, x); err != nil {
				return err
			}
			for i := range x {
				x[i] *= factor
			}
			if NotFinite(x) >= 0 {
				return nil
			}
			moments[t] = x
		}
	}
	for t, x := range moments {
		if err := t.Upload(ctx, x); err != nil {
			return err
		}
	}
	return m.rescaled(scale)
}

// rescaled takes a loss scale, which the moments have.
func (m *Model) rescaled(scale float64) error {
	if err := m.adam.SetScale(scale / m.scale); err != nil {
		return err
	}
	m.scale = scale
	return nil
}

// rescale adjusts the loss scale before a step, and records anew if it is another.
func (p *Plan) rescale(ctx context.Context) error {
	if p.pass == Train && p.batch == 0 {
		if err := p.m.adjust(ctx); err != nil {
			return err
		}
	}
	if p.scale == p.m.scale || p.batch != 0 {
		return nil
	}
	for _, cmds := range p.cmds {
		for _, c := range cmds {
			if err := c.Wait(ctx); err != nil {
				return err
			}
		}
	}
	if err := p.constants(ctx); err != nil {
		return err
	}
	return p.recordAll()
}

// LossScale returns what the gradients are multiplied by. It is Options.LossScale but for
// Options.GoodSteps.
func (m *Model) LossScale() float64 { return m.scale }
