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
// Cases are run on all cores: what takes the time is computing what is expected, and
// compiling. The device runs one call at a time, and what is reported does not depend
// on which case ended first.
package selftest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/chips"
	"github.com/flashvk/flashvk/vk"
)

// Options choose what to test.
type Options struct {
	Impls  []attention.Impl
	Budget time.Duration // for everything; cases that have begun are not cut short
	Hang   time.Duration // after which a call is given up
	Open   func() (*vk.Device, error)
}

// A Verdict is what to think of a path.
type Verdict string

// The verdicts.
const (
	Pass        Verdict = "pass"
	Slow        Verdict = "slow"
	Wrong       Verdict = "WRONG"
	Hung        Verdict = "HUNG"
	Lost        Verdict = "LOST"
	Unsupported Verdict = "not supported"
	NotRun      Verdict = "not run"
)

// Bad reports whether the path must not be used.
func (v Verdict) Bad() bool { return v == Wrong || v == Hung || v == Lost }

// A Path is the outcome for a path, a pass and a format.
type Path struct {
	Kernel  string // attention, decode or append
	Impl    attention.Impl
	Pass    bench.Pass // Forward or Backward
	DType   dtype.DType
	Verdict Verdict
	Why     string // the reason of the verdict: the first wrong case, or what the device lacks

	Right, Bad, Left int     // cases; Left were not run for lack of time
	Refused          int     // cases that this path does not take
	Worst            float64 // largest error by what is allowed
	Speed            float64 // the scalar path's time divided by this path's; 0: not measured
}

// What names the pass of attention, or another kernel.
func (p *Path) What() string {
	if p.Kernel != attentionKernel {
		return p.Kernel
	}
	return p.Pass.String()
}

// A Report is the outcome for a device.
type Report struct {
	Env      bench.Environment
	Ceilings []bench.Ceiling
	Paths    []Path
	Modules  trial.Tally // of what ran
	Took     time.Duration
}

// ran counts a case for its modules.
func (r *Report) ran(modules []vk.ModuleInfo, right bool) { r.Modules.Add(modules, Suite, right) }

// Suite stands for the kernel in the Problems of Report.Modules.
const Suite = "suite"

// Failed returns the paths that must not be used.
func (r *Report) Failed() []Path {
	return slices.DeleteFunc(slices.Clone(r.Paths), func(p Path) bool { return !p.Verdict.Bad() })
}

// Run tests a device. The Report has what is known even if there is an error,
// which means that the run was cut short.
func Run(ctx context.Context, env bench.Environment, o Options, progress bench.Progress) (*Report, error) {
	r := &run{Options: o, start: time.Now(), report: &Report{Env: env}, progress: progress, check: check, workers: trial.DefaultWorkers()}
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
	showing  sync.Mutex // held during a call of progress
	check    func(ctx context.Context, on *trial.Runner, it *item) (worst float64, err error)
	most     int // cases of each suite; 0: all
	workers  int // goroutines that run cases
}

// check checks an item.
func check(ctx context.Context, on *trial.Runner, it *item) (worst float64, err error) {
	return on.Check(ctx, it.Problem)
}

// Parts of the budget. Ceilings are measured first.
const casesPart = 0.8

func (r *run) run(ctx context.Context) (err error) {
	if r.d, err = r.Open(); err != nil {
		return err
	}
	defer func() {
		if r.d != nil && !errors.Is(err, trial.ErrHung) {
			err = errors.Join(err, r.d.Close())
		}
	}()
	r.step("ceilings")
	pr := quick(r.report.Env.CPU)
	if r.report.Ceilings, err = bench.Ceilings(ctx, r.d, pr, nil); err != nil {
		return err
	}
	for _, c := range r.report.Ceilings { // each was checked
		r.report.ran(c.Modules, c.Wrong == nil)
	}
	if err := r.layouts(); err != nil {
		return err
	}
	if err := r.cases(ctx); err != nil {
		return err
	}
	return r.speeds(ctx)
}

// layouts checks the matrix layouts that kernels are told.
func (r *run) layouts() error {
	for _, t := range []dtype.DType{dtype.Float16, dtype.BFloat16} {
		shape, lack := chips.MatrixShape(r.d.Caps(), t)
		if lack != "" {
			continue
		}
		modules, err := chips.CheckLayout(r.d, t, shape)
		if err != nil && !errors.Is(err, chips.ErrLayout) {
			return err
		}
		r.report.ran(modules, err == nil)
	}
	return nil
}

// cases runs the suites on each path.
func (r *run) cases(ctx context.Context) error {
	suites := r.suites()
	for i := range suites {
		for _, t := range formats {
			r.report.Paths = append(r.report.Paths, Path{Kernel: suites[i].kernel, Impl: suites[i].impl, Pass: suites[i].pass, DType: t})
		}
	}
	defer func() {
		for i := range r.report.Paths {
			r.report.Paths[i].conclude()
		}
	}()
	return r.runItems(ctx, r.items(suites), r.start.Add(time.Duration(casesPart*float64(r.Budget))))
}

// An item is a problem on a path.
type item struct {
	trial.Fixed
	path *Path
	lane *lane
	rank int // the order in which items are reported, and those of a path run

	done    bool
	worst   float64         // the largest error by what is allowed
	err     error           // what is wrong with it
	modules []vk.ModuleInfo // that its calls ran
}

// items lists the cases to run on all paths, the cheapest of each suite first. A path that takes none
// is not supported.
func (r *run) items(suites []suite) (list []*item) {
	for i, s := range suites {
		of := &lane{begun: map[*item]time.Time{}}
		for _, x := range s.cases {
			p := &r.report.Paths[i*len(formats)+slices.Index(formats, x.DType)]
			err := slow(r.d.Caps(), s, x.Problem)
			if err == nil {
				err = trial.Supports(x.Problem, r.d.Caps())
			}
			if err == nil {
				list = append(list, &item{Fixed: x, path: p, lane: of, rank: len(list)})
				continue
			}
			if p.Refused++; p.Why == "" {
				p.Why = strings.TrimPrefix(bench.Reason(attentionKernel, s.impl.String(), err), s.kernel+": ")
			}
		}
		for k := range formats {
			p := &r.report.Paths[i*len(formats)+k]
			if some := slices.ContainsFunc(list, func(it *item) bool { return it.path == p }); some || p.Refused == 0 {
				p.Why = ""
			} else {
				p.Verdict, p.Refused = Unsupported, 0
			}
		}
	}
	return list
}

// runItems runs cases until the deadline and adds their outcomes to their paths. Items that found no
// memory beside others run once more, alone.
func (r *run) runItems(ctx context.Context, items []*item, end time.Time) error {
	for workers := r.workers; len(items) > 0 && time.Now().Before(end); {
		ended, culprit, err := r.runSome(ctx, items, workers, end)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		for _, it := range ended {
			if it.done = workers == 1 || !errors.Is(it.err, vk.ErrOutOfDeviceMemory); it.done {
				r.add(it)
			}
		}
		if culprit != nil && !errors.Is(err, trial.ErrHung) {
			err = r.recover(ctx, culprit)
		}
		items = slices.DeleteFunc(slices.Clone(items), func(it *item) bool { return it.done || it.path.broken() })
		if err != nil {
			leave(items)
			return err
		}
		if culprit == nil {
			if workers == 1 {
				break
			}
			workers = 1
		}
	}
	leave(items)
	return nil
}

// leave counts the cases for which there was no time.
func leave(items []*item) {
	for _, it := range items {
		it.path.Left++
	}
}

// runSome runs items until the deadline, or until one breaks the device. It returns the items that
// have ended, in their order, and what Pool.Run does.
func (r *run) runSome(ctx context.Context, items []*item, workers int, deadline time.Time) (ended []*item, culprit *item, err error) {
	q := &queue{items: items}
	pool := trial.Pool[*item]{
		Workers: workers, Hang: r.Hang,
		Next: func() (*item, bool) {
			now := time.Now()
			if now.After(deadline) {
				return nil, false
			}
			it := q.take(now)
			if it != nil {
				r.step(fmt.Sprintf("%v %v: %s", it.path.Impl, it.path.What(), it.Name))
			}
			return it, it != nil
		},
		Check: func(ctx context.Context, use trial.Use, it *item) error {
			on := trial.OnDevice(r.d, use)
			it.worst, it.err = r.check(ctx, on, it)
			it.modules = on.Modules()
			q.ended(it, time.Now())
			return it.err
		},
		Done: func(it *item, _ error) { ended = append(ended, it) },
	}
	culprit, err = pool.Run(ctx)
	slices.SortFunc(ended, func(a, b *item) int { return a.rank - b.rank })
	return ended, culprit, err
}

// A queue hands out items so that each path and pass gets the same time of workers. Time that one
// does not need goes to the others. A driver may take seconds to compile each kernel of one path;
// if paths took turns by number of items, that path would take nearly all of the time.
type queue struct {
	mu    sync.Mutex
	items []*item // those of a lane in their order
}

// A lane is what the items of a path and a pass have spent.
type lane struct {
	spent time.Duration // by items that have ended
	begun map[*item]time.Time
}

// cost returns what a lane has spent until now.
func (l *lane) cost(now time.Time) time.Duration {
	cost := l.spent
	for _, start := range l.begun {
		cost += now.Sub(start) + 1 // at least 1, so that all lanes begin
	}
	return cost
}

// take returns the next item of the lane that has had the least time, nil if no item is left.
func (q *queue) take(now time.Time) *item {
	q.mu.Lock()
	defer q.mu.Unlock()
	best, costs := -1, map[*lane]time.Duration{}
	for i, it := range q.items {
		if _, seen := costs[it.lane]; seen {
			continue
		}
		costs[it.lane] = it.lane.cost(now)
		if best < 0 || costs[it.lane] < costs[q.items[best].lane] {
			best = i
		}
	}
	if best < 0 {
		return nil
	}
	it := q.items[best]
	q.items = slices.Concat(q.items[:best], q.items[best+1:])
	it.lane.begun[it] = now
	return it
}

// ended notes that an item of take has ended.
func (q *queue) ended(it *item, now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	it.lane.spent += now.Sub(it.lane.begun[it])
	delete(it.lane.begun, it)
}

// broken reports whether the path must not run again, not even for a test.
func (p *Path) broken() bool { return p.Verdict == Hung || p.Verdict == Lost }

// formats are those that each path is tested with.
var formats = []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32}

// quick is the protocol of what is timed here.
func quick(cpu bool) bench.Protocol {
	pr := bench.DefaultProtocol(cpu)
	pr.Samples, pr.SampleTime, pr.WallTime = 5, pr.SampleTime/4, -1
	return pr
}

// step shows progress; several goroutines call it.
func (r *run) step(what string) {
	r.showing.Lock()
	defer r.showing.Unlock()
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
	r.report.ran(it.modules, it.err == nil)
	switch {
	case errors.Is(it.err, context.DeadlineExceeded):
		p.Verdict, p.Why = Hung, fmt.Sprintf("%s: a call did not come back within %v", it.Name, r.Hang)
	case errors.Is(it.err, vk.ErrDeviceLost):
		p.Verdict, p.Why = Lost, fmt.Sprintf("%s: %v", it.Name, it.err)
	case it.err != nil && p.Verdict == "":
		p.Verdict, p.Why = Wrong, fmt.Sprintf("%s: %v", it.Name, it.err)
	}
}

// recover makes the device usable after an item broke it. An error means that the test
// cannot go on.
func (r *run) recover(ctx context.Context, culprit *item) error {
	if culprit.path.Verdict == Hung {
		if !r.comesBack(ctx) {
			return trial.ErrHung
		}
		return nil
	}
	r.d.Close() // its errors follow from the loss
	r.d = nil
	var err error
	if r.d, err = r.Open(); err != nil {
		return fmt.Errorf("after %s: %w", culprit.Name, err)
	}
	return nil
}

// comesBack waits for what was given up.
func (r *run) comesBack(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, r.Hang)
	defer cancel()
	return r.d.Run(limited, "selftest recover", func(*vk.Cmd) error { return nil }) == nil
}

// conclude gives a verdict to a path that has none.
func (p *Path) conclude() {
	switch {
	case p.Verdict != "":
	case p.Right == 0 && p.Left > 0:
		p.Verdict, p.Why = NotRun, fmt.Sprintf("there was no time for any of %d cases", p.Left)
	case p.Right == 0:
		p.Verdict, p.Why = NotRun, "the test ended before"
	default:
		p.Verdict = Pass
	}
}
