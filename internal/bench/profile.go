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
	Events     []event           // the last calls, on the host and on the device
}

// A DispatchProfile is a dispatch of a call.
type DispatchProfile struct {
	vk.TracedDispatch
	BeginNS []float64 // after the begin of the first dispatch, in each of several calls
	NS      []float64 // device time
}

const (
	profileCalls = 10   // that are looked at
	eventCalls   = 3    // of these that are kept as events
	maxDispatch  = 1024 // of a call
)

// RunProfile profiles the first path of each case. It is an error if the path of a single case does
// not take the problem, or is wrong. Of several cases, each has a Result that says so.
func RunProfile(ctx context.Context, d *vk.Device, env Environment, cases []Case, progress Progress) (*Profile, error) {
	p := &Profile{Env: env}
	for i, c := range cases {
		var x CallProfile
		results, err := run(ctx, d, c, progress.Part(i, len(cases)+1, ""), x.trace)
		if errors.Is(err, vk.ErrOutOfDeviceMemory) && len(cases) > 1 {
			results, err = Unsupported(c, err), nil
		}
		if err != nil {
			return nil, err
		}
		x.Result = results[0]
		if len(cases) == 1 && x.Result.Status != StatusOK {
			return nil, errors.New(x.Result.complaint())
		}
		p.Calls = append(p.Calls, x)
	}
	var err error
	p.Ceilings, err = Ceilings(ctx, d, cases[0].Protocol, progress.Part(len(cases), len(cases)+1, ""))
	return p, err
}

// trace times the dispatches of several calls. Calls without a trace run before each in the same
// submission, so that clock and caches are as in a run of many calls.
func (p *CallProfile) trace(ctx context.Context, r *opRun, target Target, x *Result) error {
	d, sets, before := r.d, len(r.sets), x.Timing.Iters
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
			p.Events = append(p.Events, lasting("record", host, recording.Sub(start), submitted.Sub(recording), calls),
				lasting("submit and wait", host, submitted.Sub(start), waited.Sub(submitted), calls))
			last := slices.Max(end)
			for i, x := range trace.Dispatches() {
				// The two clocks are not synchronized. The end of the last dispatch is placed at
				// the end of the wait.
				at := waited.Sub(start) - time.Duration(last-begin[i])
				args := map[string]any{"dispatch": i + 1, "workgroups": x.Groups, "workgroup": x.Workgroup}
				if x.Note.Text != "" {
					args["does"] = x.Note.Text
				}
				p.Events = append(p.Events, lasting(x.Kernel, device, at, time.Duration(end[i]-begin[i]), args))
			}
		}
	}
	return r.op.Note(d.Caps(), x.Impl, r.pass, p.Dispatches)
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
	whole, busy, until := slices.Max(end), 0.0, 0.0
	for i := range begin { // in their order
		busy += max(end[i]-max(begin[i], until), 0)
		until = max(until, end[i])
	}
	p.WholeNS = append(p.WholeNS, whole)
	p.IdleNS = append(p.IdleNS, whole-busy)
	return nil
}

// A KernelProfile is all dispatches of a kernel in a call.
type KernelProfile struct {
	Name       string
	Dispatches int
	NS         []float64 // of all together, in each of several calls
	Work       Work
}

// Work is the least work of a kernel.
type Work struct {
	FLOPs, Bytes float64 // 0: none, or not known
}

// Kernels returns the kernels of a call in the order of their first dispatch. The work of a kernel is
// not known if the work of one of its dispatches is not.
func (p *CallProfile) Kernels() (kernels []KernelProfile) {
	for _, x := range p.Dispatches {
		at := slices.IndexFunc(kernels, func(k KernelProfile) bool { return k.Name == x.Kernel })
		if at < 0 {
			kernels = append(kernels, KernelProfile{x.Kernel, 1, slices.Clone(x.NS), Work{x.Note.FLOPs, x.Note.Bytes}})
			continue
		}
		k := &kernels[at]
		k.Dispatches++
		for call := range k.NS {
			k.NS[call] += x.NS[call]
		}
		k.Work = Work{known(k.Work.FLOPs, x.Note.FLOPs), known(k.Work.Bytes, x.Note.Bytes)}
	}
	return kernels
}

// known returns the sum of two amounts, 0 if one of them is not known.
func known(a, b float64) float64 {
	if a == 0 || b == 0 {
		return 0
	}
	return a + b
}
