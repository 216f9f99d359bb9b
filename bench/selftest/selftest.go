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
package selftest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/attention/attntest"
	"github.com/flashvk/flashvk/bench"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/vk"
)

// Options choose what to test.
type Options struct {
	Impls  []attention.Impl
	Budget time.Duration // for everything; a case that has begun ends
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
	Impl    attention.Impl
	Pass    bench.Pass // Forward or Backward
	DType   dtype.DType
	Verdict Verdict
	Why     string // the verdict explained: the first wrong case, what the device lacks

	Right, Bad, Left int     // cases; Left were not run for lack of time
	Refused          int     // cases that this path does not take
	Worst            float64 // largest error by what is allowed
	Speed            float64 // time of the scalar path by that of this one; 0: not measured
}

// A Report is the outcome for a device.
type Report struct {
	Env      bench.Environment
	Ceilings []bench.Ceiling
	Paths    []Path
	Took     time.Duration
}

// Failed returns the paths that must not be used.
func (r *Report) Failed() []Path {
	return slices.DeleteFunc(slices.Clone(r.Paths), func(p Path) bool { return !p.Verdict.Bad() })
}

// ErrHung is wrapped by the error of Run if the device does not come back.
// Closing it would wait for ever.
var ErrHung = errors.New("the device does not come back")

// Run tests a device. The Report has what is known even if there is an error,
// which means that the run was cut short.
func Run(ctx context.Context, env bench.Environment, o Options, progress bench.Progress) (*Report, error) {
	r := &run{Options: o, start: time.Now(), report: &Report{Env: env}, progress: progress}
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
	// forwarder returns what is tested as the forward pass of a path; nil: the path.
	forwarder func(impl attention.Impl) attntest.Forwarder
	most      int // cases of each pass; 0: all
}

// Parts of the budget: the ceilings come first and take what they take.
const casesPart = 0.8

func (r *run) run(ctx context.Context) (err error) {
	if r.d, err = r.Open(); err != nil {
		return err
	}
	defer func() {
		if r.d != nil && !errors.Is(err, ErrHung) {
			err = errors.Join(err, r.d.Close())
		}
	}()
	r.step("ceilings")
	pr := quick(r.report.Env.CPU)
	if r.report.Ceilings, err = bench.Ceilings(ctx, r.d, pr, nil); err != nil {
		return err
	}
	if err := r.cases(ctx); err != nil {
		return err
	}
	return r.speeds(ctx)
}

// cases runs the suites on each path.
func (r *run) cases(ctx context.Context) error {
	suites := r.suites()
	for _, impl := range r.Impls {
		for _, s := range suites {
			for _, t := range formats {
				r.report.Paths = append(r.report.Paths, newPath(r.d.Caps(), impl, s.pass, t))
			}
		}
	}
	defer func() {
		for i := range r.report.Paths {
			r.report.Paths[i].conclude()
		}
	}()
	var groups []group
	for i := range len(r.report.Paths) / len(formats) {
		g := group{impl: r.Impls[i/len(suites)], suite: &suites[i%len(suites)], paths: r.report.Paths[i*len(formats) : (i+1)*len(formats)]}
		if slices.ContainsFunc(g.paths, func(p Path) bool { return p.Verdict != Unsupported }) {
			groups = append(groups, g)
		}
	}
	// Rounds, since a group may leave time to the others.
	end := r.start.Add(time.Duration(casesPart * float64(r.Budget)))
	for first := true; len(groups) > 0 && (first || time.Now().Before(end)); first = false {
		for i := range groups {
			if err := r.path(ctx, &groups[i], time.Now().Add(time.Until(end)/time.Duration(len(groups)-i))); err != nil {
				return err
			}
		}
		groups = slices.DeleteFunc(groups, func(g group) bool { return len(g.cases()) == 0 })
	}
	for i := range groups {
		r.leave(&groups[i])
	}
	return nil
}

// A group is a path and a pass in all formats.
type group struct {
	impl  attention.Impl
	suite *suite
	paths []Path // one for each format
	done  int    // cases
}

// cases returns those that have not been run.
func (g *group) cases() []*attntest.Case { return g.suite.cases[g.done:] }

// of returns the Path of a case, nil if it is not to be run.
func (g *group) of(c *attntest.Case) *Path {
	p := &g.paths[slices.Index(formats, c.Problem.DType)]
	if p.Verdict == Unsupported || p.Verdict == Hung || p.Verdict == Lost {
		return nil
	}
	return p
}

// formats are those that each path is tested with.
var formats = []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float32}

// quick is the protocol of what is timed here.
func quick(cpu bool) bench.Protocol {
	pr := bench.DefaultProtocol(cpu)
	pr.Samples, pr.SampleTime, pr.WallTime = 5, pr.SampleTime/4, -1
	return pr
}

func (r *run) step(what string) {
	if r.progress != nil {
		const parts = 1000
		r.progress(int(parts*min(float64(time.Since(r.start))/float64(r.Budget), 1)), parts, what)
	}
}

// path runs cases of a group, the cheap ones first, until the deadline.
func (r *run) path(ctx context.Context, g *group, deadline time.Time) error {
	for _, c := range g.cases() {
		p := g.of(c)
		switch {
		case p == nil:
		case r.refuses(g.suite.pass, g.impl, c) != nil:
			p.Refused++
		case time.Now().After(deadline):
			return nil
		default:
			r.step(fmt.Sprintf("%v %v: %s", g.impl, g.suite.pass, c.Name))
			worst, err := g.suite.check(ctx, g.impl, c)
			if err := r.add(ctx, p, c, worst, err); err != nil {
				return err
			}
		}
		g.done++
	}
	return nil
}

// leave counts the cases of a group for which there was no time.
func (r *run) leave(g *group) {
	for _, c := range g.cases() {
		if p := g.of(c); p != nil && r.refuses(g.suite.pass, g.impl, c) == nil {
			p.Left++
		}
	}
}

// newPath returns the Path of a pass and a format, unsupported if there is no
// problem at all that it takes.
func newPath(caps *vk.Caps, impl attention.Impl, pass bench.Pass, t dtype.DType) Path {
	p := Path{Impl: impl, Pass: pass, DType: t}
	supports := attention.Supports
	if pass == bench.Backward {
		supports = attention.SupportsBackward
	}
	if err := supports(caps, impl, attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 64, HeadDim: 64, DType: t}); err != nil {
		p.Verdict, p.Why = Unsupported, bench.Reason(err, impl)
	}
	return p
}

// add adds the outcome of a case. An error means that the test cannot go on.
func (r *run) add(ctx context.Context, p *Path, c *attntest.Case, worst float64, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		p.Right++
		p.Worst = max(p.Worst, worst)
		return nil
	case errors.Is(err, vk.ErrUnsupported) || errors.Is(err, vk.ErrOutOfDeviceMemory):
		p.Refused++
		return nil
	}
	p.Bad++
	if p.Verdict == "" {
		p.Verdict, p.Why = Wrong, fmt.Sprintf("%s: %v", c.Name, err)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		p.Verdict, p.Why = Hung, fmt.Sprintf("%s: a call did not come back within %v", c.Name, r.Hang)
		if !r.comesBack(ctx) {
			return ErrHung
		}
	case errors.Is(err, vk.ErrDeviceLost):
		p.Verdict, p.Why = Lost, fmt.Sprintf("%s: %v", c.Name, err)
		r.d.Close() // its errors follow from the loss
		r.d = nil
		var err error
		if r.d, err = r.Open(); err != nil {
			return fmt.Errorf("after %s: %w", c.Name, err)
		}
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
