package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flashvk/flashvk/vk"
)

// A Profile says where the time of calls goes.
type Profile struct {
	Env      Environment
	Calls    []CallProfile
	Ceilings []Ceiling
}

// A CallProfile says where the time of a call goes.
type CallProfile struct {
	Result     Result            // the whole call, checked and timed as bench does
	Dispatches []DispatchProfile // in their order; none if the device cannot do it
	WholeNS    []float64         // from the begin of the first to the end of the last, in each of several calls
	IdleNS     []float64         // of that: while no dispatch ran
	Events     []Event           // the last calls, on the host and on the device
}

// A DispatchProfile is a dispatch of a call.
type DispatchProfile struct {
	vk.TracedDispatch
	BeginNS []float64 // after the begin of the first dispatch, in each of several calls
	NS      []float64 // device time
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
	profileCalls = 10   // that are looked at
	eventCalls   = 3    // of these that are kept as events
	maxDispatch  = 1024 // of a call
)

// RunProfile profiles the first path of each case. The error wraps vk.ErrUnsupported if the path
// does not take the problem, or says that it is wrong. Of several cases, one that is not
// supported or does not fit into memory has a Result that says so.
func RunProfile(ctx context.Context, d *vk.Device, env Environment, cases []Case, progress Progress) (*Profile, error) {
	p := &Profile{Env: env}
	done := 0
	step := func(what string) {
		if progress != nil {
			progress(done, 3*len(cases)+1, what)
		}
		done++
	}
	for _, c := range cases {
		r := newOpRun(d, c)
		x := CallProfile{Result: r.result(c.Impls[0])}
		err := x.measure(ctx, r, c.Protocol, step)
		r.close() // the next call needs memory
		if (errors.Is(err, vk.ErrUnsupported) || errors.Is(err, vk.ErrOutOfDeviceMemory)) && len(cases) > 1 {
			x = CallProfile{Result: x.Result}
			x.Result.Status, x.Result.Reason = StatusUnsupported, Reason(c.Op.Name(), c.Impls[0], err)
			err = nil
		}
		if err != nil {
			return nil, err
		}
		p.Calls = append(p.Calls, x)
	}
	step("ceilings")
	var err error
	p.Ceilings, err = Ceilings(ctx, d, cases[0].Protocol, nil)
	return p, err
}

// measure checks, times and traces a call of r.
func (p *CallProfile) measure(ctx context.Context, r *opRun, pr Protocol, step func(what string)) (err error) {
	x := &p.Result
	if x.Choice, err = r.choose(x.Impl); err != nil {
		return err
	}
	step("reference")
	if err := r.prepare(ctx); err != nil {
		return err
	}
	x.Status = StatusUnsupported
	target, err := r.check(ctx, r.call(x.Impl), x)
	switch {
	case err != nil:
		return err
	case x.Status == StatusUnsupported:
		return fmt.Errorf("%s: %s: %w", x.Impl, x.Reason, vk.ErrUnsupported)
	case x.Status == StatusFailed:
		return fmt.Errorf("%s is wrong: %s", x.Impl, x.Reason)
	}
	if err := r.addSets(ctx, pr.sets(x.Subject.bytes)); err != nil {
		return err
	}
	step("whole calls")
	measured, err := Measure(ctx, r.d, []Target{target}, len(r.sets), pr, func() {})
	if err == nil {
		err = measured[0].Err
	}
	if err != nil {
		return err
	}
	x.Timing = measured[0].Timing
	step("dispatches")
	if err := p.trace(ctx, r.d, target, len(r.sets)); err != nil {
		return err
	}
	noted, ok := r.op.(Noter)
	if !ok {
		return nil
	}
	return noted.Note(r.d.Caps(), x.Impl, r.pass, p.Dispatches)
}

// trace times the dispatches of several calls. Calls without a trace run before each in the same
// submission, so that clock and caches are as in a run of many calls.
func (p *CallProfile) trace(ctx context.Context, d *vk.Device, target Target, sets int) error {
	c, err := d.NewCmd("profile")
	if err != nil {
		return err
	}
	defer c.Close()
	trace, err := d.NewTrace(maxDispatch)
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
			if err := target.Record(c, i%sets); err != nil {
				return err
			}
			c.Barrier() // calls do not overlap
		}
		c.Trace(trace)
		if err := target.Record(c, before%sets); err != nil {
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
		if err := p.add(trace.Dispatches(), begin, end); err != nil {
			return err
		}
		if call >= profileCalls-eventCalls {
			calls := map[string]any{"calls": before + 1}
			p.Events = append(p.Events, Event{"record", false, recording.Sub(start), submitted.Sub(recording), calls},
				Event{"submit and wait", false, submitted.Sub(start), waited.Sub(submitted), calls})
			last := slices.Max(end)
			for i, x := range trace.Dispatches() {
				// The two clocks are not synchronized. The end of the last dispatch is placed at
				// the end of the wait.
				at := waited.Sub(start) - time.Duration(last-begin[i])
				args := map[string]any{"dispatch": i + 1, "workgroups": x.Groups, "workgroup": x.Workgroup}
				if x.Note.Text != "" {
					args["does"] = x.Note.Text
				}
				p.Events = append(p.Events, Event{x.Kernel, true, at, time.Duration(end[i] - begin[i]), args})
			}
		}
	}
	return nil
}

// add adds the dispatches of one call.
func (p *CallProfile) add(list []vk.TracedDispatch, begin, end []float64) error {
	if len(list) == 0 {
		return errors.New("a call dispatches nothing")
	}
	if len(p.Dispatches) == 0 {
		for _, x := range list {
			p.Dispatches = append(p.Dispatches, DispatchProfile{TracedDispatch: x})
		}
	}
	if len(list) != len(p.Dispatches) {
		return fmt.Errorf("a call has %d dispatches, another %d", len(p.Dispatches), len(list))
	}
	for i := range list {
		x := &p.Dispatches[i]
		x.BeginNS, x.NS = append(x.BeginNS, begin[i]), append(x.NS, end[i]-begin[i])
	}
	whole := slices.Max(end)
	p.WholeNS = append(p.WholeNS, whole)
	p.IdleNS = append(p.IdleNS, whole-covered(begin, end))
	return nil
}

// covered returns the length of the union of the times, which are in the order of their begin.
func covered(begin, end []float64) float64 {
	sum, until := 0.0, 0.0
	for i := range begin {
		sum += max(end[i]-max(begin[i], until), 0)
		until = max(until, end[i])
	}
	return sum
}

// A KernelProfile is all dispatches of a kernel in a call.
type KernelProfile struct {
	Name       string
	Dispatches int
	NS         []float64 // while one of them ran, in each of several calls
	Work       Work
}

// Work is the least work of a kernel.
type Work struct {
	FLOPs, Bytes float64 // 0: none, or not known
}

// Kernels returns the kernels of a call in the order of their first dispatch.
func (p *CallProfile) Kernels() []KernelProfile {
	var names []string
	of := map[string][]*DispatchProfile{}
	for i := range p.Dispatches {
		x := &p.Dispatches[i]
		if of[x.Kernel] == nil {
			names = append(names, x.Kernel)
		}
		of[x.Kernel] = append(of[x.Kernel], x)
	}
	var kernels []KernelProfile
	for _, name := range names {
		list := of[name]
		k := KernelProfile{Name: name, Dispatches: len(list), Work: sumWork(list)}
		for call := range p.WholeNS {
			var begin, end []float64
			for _, x := range list {
				begin, end = append(begin, x.BeginNS[call]), append(end, x.BeginNS[call]+x.NS[call])
			}
			k.NS = append(k.NS, covered(begin, end))
		}
		kernels = append(kernels, k)
	}
	return kernels
}

// sumWork returns the work of dispatches together. It is not known if that of one is not.
func sumWork(list []*DispatchProfile) Work {
	sum := func(of func(x *DispatchProfile) float64) (all float64) {
		for _, x := range list {
			if of(x) == 0 {
				return 0
			}
			all += of(x)
		}
		return all
	}
	return Work{sum(func(x *DispatchProfile) float64 { return x.Note.FLOPs }), sum(func(x *DispatchProfile) float64 { return x.Note.Bytes })}
}
