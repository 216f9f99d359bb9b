package bench

import (
	"context"

	"github.com/flashvk/flashvk/vk"
)

// A TunableOp is an Op that can be made to run any configuration.
type TunableOp interface {
	Op
	choices
	// With returns the same with configuration c instead of the table's.
	With(c Candidate) Op
}

// TuneOp returns the choices of the forward pass of an Op.
func TuneOp(op TunableOp) Tunable { return tunableOp{op} }

type tunableOp struct{ TunableOp }

func (t tunableOp) Title() string { return NewSubject(t, Forward).title }

func (t tunableOp) contest(d *vk.Device) contest {
	return &opContest{opRun: newOpRun(d, OpCase{Op: t.TunableOp}), op: t.TunableOp}
}

// opContest is the contest of configurations of an Op.
type opContest struct {
	*opRun
	op    TunableOp
	dirty bool // what is read may not be what was drawn
}

func (r *opContest) record(c Candidate) func(*vk.Cmd, int) error {
	op := r.op.With(c)
	return func(cmd *vk.Cmd, set int) error { return r.opRun.record(cmd, set, op, "auto") }
}

// check uploads what is read only where a call may have changed it: of large problems that
// takes longer than the rest. What is wrong may have written anywhere.
func (r *opContest) check(ctx context.Context, record func(*vk.Cmd, int) error, x *Result) (Target, error) {
	if r.dirty {
		if err := r.restore(ctx); err != nil {
			return Target{}, err
		}
	}
	target, err := r.checkCall(ctx, record, x)
	if err == nil && x.Status != StatusOK {
		err = r.restore(ctx)
	}
	r.dirty = err != nil || r.updates()
	return target, err
}

// Candidates returns configurations of any type as Candidates.
func Candidates[C Candidate](list []C) []Candidate {
	all := make([]Candidate, len(list))
	for i, c := range list {
		all[i] = c
	}
	return all
}
