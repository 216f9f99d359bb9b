package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/vk"
)

// A Profile says where the time of a call goes.
type Profile struct {
	Env      Environment
	Result   Result           // the whole call, checked and timed as bench does
	Impl     attention.Impl   // what runs; of both passes that of the forward pass
	Config   attention.Config // of a forward pass
	Kernels  []KernelProfile  // in the order of their first dispatch
	Ceilings []Ceiling
	Events   []Event // the last calls, on the host and on the device
}

// A KernelProfile is a kernel of a call.
type KernelProfile struct {
	Name       string
	Dispatches int
	Groups     [3]uint32 // workgroups of the first dispatch
	Workgroup  [3]uint32 // its size; 0 if it is not known
	Stats      vk.KernelStats
	NS         []float64 // device time of all its dispatches, in each of several calls
	Work       Work
	Occupancy  Occupancy
}

// Work is what a kernel has to do at least.
type Work struct {
	FLOPs, Bytes float64 // 0: none, or not known
}

// An Event is something that lasted, for a timeline.
type Event struct {
	Name   string
	Device bool // else on the host
	Begin  time.Duration
	Length time.Duration
	Args   map[string]any
}

const (
	profileCalls = 10  // that are looked at
	eventCalls   = 3   // of these that are kept as events
	maxDispatch  = 256 // of a call
)

// ProfileAttention profiles one path of a case. The error wraps
// vk.ErrUnsupported if the path does not take the problem, or says that it is
// wrong.
func ProfileAttention(ctx context.Context, d *vk.Device, env Environment, c Case, progress Progress) (*Profile, error) {
	opt := attention.Options{Impl: c.Impls[0], Tuning: c.Tuning}
	p := &Profile{Env: env}
	if err := p.choose(d.Caps(), c, opt); err != nil {
		return nil, err
	}
	r := newAttentionRun(d, c.Problem)
	r.pass, r.tuning = c.Pass, c.Tuning
	defer r.close()
	total := 4
	done := 0
	step := func(what string) {
		if progress != nil {
			progress(done, total, what)
		}
		done++
	}
	step("reference")
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	target, err := r.check(ctx, c.Impls[0], r.record(opt), &p.Result)
	switch {
	case err != nil:
		return nil, err
	case p.Result.Status == StatusUnsupported:
		return nil, fmt.Errorf("%s: %s: %w", p.Result.Impl, p.Result.Reason, vk.ErrUnsupported)
	case p.Result.Status == StatusFailed:
		return nil, fmt.Errorf("%s is wrong: %s", p.Result.Impl, p.Result.Reason)
	}
	if err := r.addSets(ctx, c.Protocol.sets(c.Pass.bytes(c.Problem))); err != nil {
		return nil, err
	}
	step("whole calls")
	measured, err := Measure(ctx, d, []Target{target}, len(r.sets), c.Protocol, func() {})
	if err != nil {
		return nil, err
	}
	if measured[0].Err != nil {
		return nil, measured[0].Err
	}
	p.Result.Timing = measured[0].Timing
	step("kernels")
	if err := p.trace(ctx, r, target, c.Protocol); err != nil {
		return nil, err
	}
	r.close() // the ceilings need memory
	step("ceilings")
	p.Ceilings, err = Ceilings(ctx, d, c.Protocol, nil)
	return p, err
}

// choose finds out what runs.
func (p *Profile) choose(caps *vk.Caps, c Case, opt attention.Options) (err error) {
	p.Result = Result{Kernel: c.Pass.kernel(), Impl: opt.Impl.String(), Problem: c.Problem}
	if p.Result.Choice, err = c.Pass.choice(caps, c.Problem, opt); err != nil {
		return err
	}
	if c.Pass == Backward {
		config, err := attention.ChooseBackward(caps, c.Problem, opt)
		p.Impl = config.Impl
		return err
	}
	p.Config, err = attention.Choose(caps, c.Problem, opt)
	p.Impl = p.Config.Impl
	return err
}

// trace times the kernels of several calls. Calls that are not traced run
// before each in the same submission, so that the clock is up and the caches hold
// what they hold in a run of many calls.
func (p *Profile) trace(ctx context.Context, r *attentionRun, target Target, pr Protocol) error {
	c, err := r.d.NewCmd("profile")
	if err != nil {
		return err
	}
	defer c.Close()
	trace, err := r.d.NewTrace(maxDispatch)
	if err != nil {
		return err
	}
	defer trace.Close()
	before := p.Result.Timing.Iters
	start := time.Now()
	for call := range profileCalls {
		recording := time.Now()
		c.Reset()
		for i := range before {
			if err := target.Record(c, i%len(r.sets)); err != nil {
				return err
			}
			c.Barrier()
		}
		c.Trace(trace)
		if err := target.Record(c, before%len(r.sets)); err != nil {
			return err
		}
		submitted := time.Now()
		if err := c.Submit(ctx); err != nil {
			return err
		}
		waited := time.Now()
		begin, end, err := trace.Times()
		if err != nil {
			return err
		}
		p.add(r, trace.Dispatches(), begin, end)
		if call >= profileCalls-eventCalls {
			p.event("record", false, recording.Sub(start), submitted.Sub(recording), map[string]any{"calls": before + 1})
			p.event("submit and wait", false, submitted.Sub(start), waited.Sub(submitted), map[string]any{"calls": before + 1})
			last := end[len(end)-1]
			for i, x := range trace.Dispatches() {
				// The two clocks are not synchronized: the end of the last kernel is put
				// to the end of the wait.
				at := waited.Sub(start) - time.Duration(last-begin[i])
				p.event(x.Kernel, true, at, time.Duration(end[i]-begin[i]), map[string]any{"workgroups": x.Groups, "workgroup": x.Workgroup})
			}
		}
	}
	return nil
}

func (p *Profile) event(name string, device bool, begin, length time.Duration, args map[string]any) {
	p.Events = append(p.Events, Event{name, device, begin, length, args})
}

// add adds the dispatches of one call.
func (p *Profile) add(r *attentionRun, list []vk.TracedDispatch, begin, end []float64) {
	calls := make(map[string]float64)
	for i, x := range list {
		at := slices.IndexFunc(p.Kernels, func(k KernelProfile) bool { return k.Name == x.Kernel })
		if at < 0 {
			at = len(p.Kernels)
			p.Kernels = append(p.Kernels, KernelProfile{
				Name: x.Kernel, Groups: x.Groups, Workgroup: x.Workgroup, Stats: x.Stats,
				Work: workOf(x.Kernel, r.p, p.Config), Occupancy: EstimateOccupancy(r.d.Caps(), x.Stats, x.Workgroup),
			})
		}
		if len(p.Kernels[at].NS) == 0 {
			p.Kernels[at].Dispatches++
		}
		calls[x.Kernel] += end[i] - begin[i]
	}
	for i := range p.Kernels {
		k := &p.Kernels[i]
		k.NS = append(k.NS, calls[k.Name])
	}
}

// workOf returns what a kernel of a forward pass has to do, by the conventions of
// problem.Problem.FLOPs and Bytes: unmasked entries count, each tensor is read or
// written once. Kernels of the backward pass share its work in ways that the
// conventions do not know.
func workOf(kernel string, p attention.Problem, c attention.Config) Work {
	size := float64(p.DType.Size())
	q, k, v := float64(elements(p.QShape())), float64(elements(p.KShape())), float64(elements(p.VShape()))
	o, lse := float64(elements(p.OShape())), 4*float64(elements(p.LSEShape()))
	scores := 4 * float64(p.Batch) * float64(p.NumHeads) * float64(p.SeqQ) * float64(p.SeqKV)
	dims := float64(p.HeadDim + p.ValueHeadDim())
	partial := float64(c.Splits) * (4*o + 2*lse)
	switch {
	case strings.HasPrefix(kernel, "attention_fwd_") && c.Splits > 1:
		return Work{flops(p), size*(q+k+v) + partial}
	case strings.HasPrefix(kernel, "attention_fwd_"):
		return Work{flops(p), p.Bytes()}
	case strings.HasPrefix(kernel, "attention_combine"):
		return Work{0, partial + size*o + lse}
	case strings.HasPrefix(kernel, "attention_unfused_scores"):
		return Work{flops(p) * float64(p.HeadDim) / dims, size*(q+k) + scores}
	case strings.HasPrefix(kernel, "attention_unfused_softmax"):
		return Work{0, 2*scores + lse}
	case strings.HasPrefix(kernel, "attention_unfused_values"):
		return Work{flops(p) * float64(p.ValueHeadDim()) / dims, size*(v+o) + scores}
	}
	return Work{}
}
