// Package selftest runs the suite of package attntest on a device that nobody
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
	"github.com/flashvk/flashvk/internal/attention/attntest"
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
	r := &run{Options: o, start: time.Now(), report: &Report{Env: env}, progress: progress, workers: trial.DefaultWorkers()}
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
	// forwarder returns an implementation to test instead of the forward pass of a path; nil:
	// none.
	forwarder func(impl attention.Impl) attntest.Forwarder
	most      int // cases of each pass; 0: all
	workers   int // goroutines that run cases
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
	for _, impl := range r.Impls {
		for _, s := range suites {
			for _, t := range formats {
				if s.impls == nil || slices.Contains(s.impls, impl) {
					r.report.Paths = append(r.report.Paths, newPath(r.d.Caps(), impl, &s, t))
				}
			}
		}
	}
	defer func() {
		for i := range r.report.Paths {
			r.report.Paths[i].conclude()
		}
	}()
	return r.runItems(ctx, r.items(suites), r.start.Add(time.Duration(casesPart*float64(r.Budget))))
}

// runItems runs cases until the deadline and adds their outcomes to their paths. Items that run alone
// come last.
func (r *run) runItems(ctx context.Context, items []*item, end time.Time) error {
	items = slices.Clone(items)
	for len(items) > 0 && time.Now().Before(end) {
		ended, culprit, err := r.runSome(ctx, items, end)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		done := map[*item]bool{}
		for _, it := range ended {
			if errors.Is(it.err, vk.ErrOutOfDeviceMemory) && !it.alone && r.workers > 1 {
				it.alone, it.rank = true, it.rank+1<<30
				continue // it may find enough memory alone
			}
			done[it] = true
			r.add(it)
		}
		if culprit != nil && !errors.Is(err, trial.ErrHung) {
			err = r.recover(ctx, culprit)
		}
		items = slices.DeleteFunc(items, func(it *item) bool { return done[it] || it.path.broken() })
		if err != nil {
			r.leave(items)
			return err
		}
		slices.SortStableFunc(items, byRank)
	}
	r.leave(items)
	return nil
}

// runSome runs items on all cores until the deadline, or until one breaks the device. Items that run
// alone are left to another call if there are others. It returns the items that have ended, in their
// order, and what Pool.Run does.
func (r *run) runSome(ctx context.Context, items []*item, deadline time.Time) (ended []*item, culprit *item, err error) {
	workers := r.workers
	if items[0].alone {
		workers = 1
	} else if i := slices.IndexFunc(items, func(it *item) bool { return it.alone }); i >= 0 {
		items = items[:i]
	}
	q := newQueue(items)
	pool := trial.Pool[*item]{
		Workers: workers, Hang: r.Hang,
		Next: func() (*item, bool) {
			now := time.Now()
			if now.After(deadline) {
				return nil, false
			}
			it := q.take(now)
			if it != nil {
				r.step(it.String())
			}
			return it, it != nil
		},
		Check: func(ctx context.Context, use trial.Use, it *item) error {
			on := trial.OnDevice(r.d, use)
			it.worst, it.err = it.suite.check(ctx, on, it)
			it.modules = on.Modules()
			q.ended(it, time.Now())
			return it.err
		},
		Done: func(it *item, _ error) { ended = append(ended, it) },
	}
	culprit, err = pool.Run(ctx)
	slices.SortStableFunc(ended, byRank)
	return ended, culprit, err
}

// leave counts the cases for which there was no time.
func (r *run) leave(items []*item) {
	for _, it := range items {
		it.path.Left++
	}
}

// path returns the Path of a suite and a format.
func (r *Report) path(impl attention.Impl, s *suite, t dtype.DType) *Path {
	i := slices.IndexFunc(r.Paths, func(p Path) bool { return p.Impl == impl && p.Kernel == s.kernel && p.Pass == s.pass && p.DType == t })
	return &r.Paths[i]
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

// newPath returns the Path of a suite and a format. Its verdict is unsupported if the path takes no
// problem at all.
func newPath(caps *vk.Caps, impl attention.Impl, s *suite, t dtype.DType) Path {
	p := Path{Kernel: s.kernel, Impl: impl, Pass: s.pass, DType: t}
	problem := attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 64, HeadDim: 64, DType: t}
	var err error
	switch s.kernel {
	case attentionKernel:
		err = attention.Supports(caps, problem, s.pass.Kit(), attention.Options{Impl: impl})
	case decodeKernel, stepKernel:
		_, err = attention.ChooseDecode(caps, attention.DecodeProblem{Problem: problem}, attention.Options{Impl: impl})
	}
	if err != nil {
		p.Verdict, p.Why = Unsupported, strings.TrimPrefix(bench.Reason(attentionKernel, impl.String(), err), s.kernel+": ")
	}
	return p
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
		p.Verdict, p.Why = Hung, fmt.Sprintf("%s: a call did not come back within %v", it.c.name, r.Hang)
	case errors.Is(it.err, vk.ErrDeviceLost):
		p.Verdict, p.Why = Lost, fmt.Sprintf("%s: %v", it.c.name, it.err)
	case it.err != nil && p.Verdict == "":
		p.Verdict, p.Why = Wrong, fmt.Sprintf("%s: %v", it.c.name, it.err)
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
		return fmt.Errorf("after %s: %w", culprit.c.name, err)
	}
	return nil
}

// comesBack waits for what was given up.
func (r *run) comesBack(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, r.Hang)
	defer cancel()
	c, err := r.d.NewCmd("selftest recover")
	if err != nil {
		return false
	}
	defer c.Close()
	return c.Submit(limited) == nil
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
