// Package selftest runs fixed problems on a device that nobody
// has tested yet, and says for each path what to think of it:
//
//	pass           every case is right
//	slow           right, but hardly faster than the scalar path: matrices may be
//	               emulated
//	WRONG          a case is wrong, which is named
//	HUNG, LOST     a kernel did not come back, or took the device with it
//	not supported  the device lacks something, which is named
//	not run        there was no time left
//
// Drivers advertise matrices that are emulated or miscompiled; this finds out
// which.
//
// Cases run on all cores: the references and compilation take most of the time. The device
// runs one call at a time, and the report does not depend on which case ended first.
package selftest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/vk"
)

// Options choose what to test.
type Options struct {
	Impls  []attention.Impl
	Budget time.Duration // for everything; cases that have begun are not cut short
	Hang   time.Duration // after which a call is given up
	Open   func() (*vk.Device, error)
}

// Run tests a device. The Report has what is known even if there is an error,
// which means that the run was cut short.
func Run(ctx context.Context, env bench.Environment, o Options, progress bench.Progress) (*Report, error) {
	r := newRun(env, o)
	r.progress = progress
	err := r.run(ctx)
	r.report.Took = time.Since(r.start)
	return r.report, err
}

// run is one self-test.
type run struct {
	Options
	start    time.Time
	d        *vk.Device
	report   *Report
	progress bench.Progress
	check    func(ctx context.Context, on *trial.Runner, it *item) (worst float64, err error)
	most     int // cases of each suite; 0: all
	workers  int // goroutines that run cases

	mu sync.Mutex // of lanes, and during a call of progress
}

func newRun(env bench.Environment, o Options) *run {
	return &run{
		Options: o, start: time.Now(), report: &Report{Env: env, Record: new(conformance.Record)}, workers: trial.DefaultWorkers(),
		check: func(ctx context.Context, on *trial.Runner, it *item) (float64, error) {
			return on.Check(ctx, it.problem)
		},
	}
}

func (r *run) run(ctx context.Context) (err error) {
	if r.d, err = r.Open(); err != nil {
		return err
	}
	defer func() {
		if r.d != nil && !errors.Is(err, trial.ErrHung) {
			err = errors.Join(err, r.d.Close())
		}
	}()
	r.report.Record = conformance.New(r.d.Caps())
	r.step("ceilings")
	if r.report.Ceilings, err = bench.Ceilings(ctx, r.d, quick(r.report.Env.CPU), nil); err != nil {
		return err
	}
	for _, c := range r.report.Ceilings { // each was checked
		r.ran(c.Modules, c.Wrong == nil)
	}
	for _, t := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
		shape, lack := chips.MatrixShape(r.d.Caps(), t)
		if lack != "" {
			continue
		}
		modules, err := chips.CheckLayout(r.d, t, shape)
		if err != nil && !errors.Is(err, chips.ErrLayout) {
			return err
		}
		r.ran(modules, err == nil)
	}
	if err := r.cases(ctx); err != nil {
		return err
	}
	return r.speeds(ctx)
}

// ran counts a case for its modules.
func (r *run) ran(modules []vk.ModuleInfo, right bool) {
	for _, m := range modules {
		r.report.Record.Ran(m, "", right)
	}
}

// cases runs the suites on each path, in the part of the budget that leaves time for speeds.
func (r *run) cases(ctx context.Context) error {
	defer func() {
		for _, p := range r.report.Paths {
			p.conclude()
		}
	}()
	return r.runItems(ctx, r.items(), r.start.Add(r.Budget*4/5))
}

// An item is a problem on a path.
type item struct {
	name    string
	format  dtype.DType
	cost    float64 // about the reference's, in operations
	problem trial.Problem
	path    *Path
	lane    *lane

	worst   float64         // the largest error by what is allowed
	err     error           // what is wrong with it
	modules []vk.ModuleInfo // that its calls ran
}

// runItems runs cases until the deadline and adds their outcomes to their paths. Items that found no
// memory beside others run once more, alone.
func (r *run) runItems(ctx context.Context, items []*item, end time.Time) error {
	defer func() {
		for _, it := range items {
			it.path.Left++
		}
	}()
	for workers := r.workers; len(items) > 0 && time.Now().Before(end); {
		ended, culprit, err := r.runSome(ctx, items, workers, end)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		items = slices.DeleteFunc(slices.Clone(items), func(it *item) bool {
			done := ended[it] && (workers == 1 || !errors.Is(it.err, vk.ErrOutOfDeviceMemory))
			if done {
				r.add(it)
			}
			return done
		})
		items = slices.DeleteFunc(items, func(it *item) bool { return it.path.Verdict == Hung || it.path.Verdict == Lost })
		switch {
		case errors.Is(err, trial.ErrHung):
			return err
		case culprit != nil:
			if err := r.recover(ctx, culprit); err != nil {
				return err
			}
		case workers == 1:
			return nil
		default:
			workers = 1
		}
	}
	return nil
}

// runSome runs items until the deadline, or until one breaks the device. It returns the items that
// have ended, and what Pool.Run does.
func (r *run) runSome(ctx context.Context, items []*item, workers int, deadline time.Time) (ended map[*item]bool, culprit *item, err error) {
	ended, items = map[*item]bool{}, slices.Clone(items)
	pool := trial.Pool[*item]{
		Workers: workers, Hang: r.Hang,
		Next: func() (*item, bool) {
			if time.Now().After(deadline) {
				return nil, false
			}
			r.mu.Lock()
			it := take(&items, time.Since(r.start))
			r.mu.Unlock()
			if it != nil {
				r.step(fmt.Sprintf("%v %s: %s", it.path.Impl, it.path.What, it.name))
			}
			return it, it != nil
		},
		Check: func(ctx context.Context, use trial.Use, it *item) error {
			on := trial.OnDevice(r.d, use)
			it.worst, it.err = r.check(ctx, on, it)
			it.modules = on.Modules()
			r.mu.Lock()
			defer r.mu.Unlock()
			it.end(time.Since(r.start))
			return it.err
		},
		Done: func(it *item, _ error) { ended[it] = true },
	}
	culprit, err = pool.Run(ctx)
	return ended, culprit, err
}

// A lane is the items of a path and a pass, which share the time of workers with other lanes. Each
// lane gets the same time, and what one does not need goes to the others. A driver may take seconds
// to compile each kernel of one path; if paths took turns by number of items, that path would take
// nearly all of the time.
type lane struct {
	spent   time.Duration // by items that have ended, less when those that run began
	running int
}

// cost returns the time that a lane has spent until now, and at least 1 for each item that runs, so
// that all lanes begin.
func (l *lane) cost(now time.Duration) time.Duration {
	return l.spent + time.Duration(l.running)*(now+1)
}

// take removes the next item of the lane that has had the least time; nil if no item is left.
func take(items *[]*item, now time.Duration) *item {
	if len(*items) == 0 {
		return nil
	}
	it := slices.MinFunc(*items, func(a, b *item) int { return cmp.Compare(a.lane.cost(now), b.lane.cost(now)) })
	*items = slices.DeleteFunc(*items, func(x *item) bool { return x == it })
	it.lane.spent, it.lane.running = it.lane.spent-now, it.lane.running+1
	return it
}

// end notes that an item of take has ended.
func (it *item) end(now time.Duration) {
	it.lane.spent, it.lane.running = it.lane.spent+now, it.lane.running-1
}

// step shows progress; several goroutines call it.
func (r *run) step(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.progress != nil {
		const parts = 1000
		r.progress(int(parts*min(float64(time.Since(r.start))/float64(r.Budget), 1)), parts, what)
	}
}

// add adds the outcome of a case.
func (r *run) add(it *item) {
	p := it.path
	switch {
	case it.err == nil:
		p.Right++
		p.Worst = max(p.Worst, it.worst)
	case errors.Is(it.err, vk.ErrUnsupported) || errors.Is(it.err, vk.ErrOutOfDeviceMemory):
		p.Refused++
		return
	default:
		p.Bad++
	}
	r.ran(it.modules, it.err == nil)
	switch {
	case errors.Is(it.err, context.DeadlineExceeded):
		p.Verdict, p.Why = Hung, fmt.Sprintf("%s: a call did not come back within %v", it.name, r.Hang)
	case errors.Is(it.err, vk.ErrDeviceLost):
		p.Verdict, p.Why = Lost, fmt.Sprintf("%s: %v", it.name, it.err)
	case it.err != nil && p.Verdict == "":
		p.Verdict, p.Why = Wrong, fmt.Sprintf("%s: %v", it.name, it.err)
	}
}

// recover makes the device usable after an item broke it: it waits for what was given up, or opens a
// lost device again. An error means that the test cannot go on.
func (r *run) recover(ctx context.Context, culprit *item) (err error) {
	if culprit.path.Verdict == Hung {
		if trial.Recover(ctx, r.d, r.Hang) != nil {
			return trial.ErrHung // also of a device that is lost by now: what was found is printed
		}
		return nil
	}
	r.d.Close() // its errors follow from the loss
	if r.d, err = r.Open(); err != nil {
		r.d = nil
		return fmt.Errorf("after %s: %w", culprit.name, err)
	}
	return nil
}
