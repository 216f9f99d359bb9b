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
	"cmp"
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

// A Path is the outcome for a path and a format.
type Path struct {
	Impl    attention.Impl
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
	// forwarder returns what is tested as a path; nil: the path.
	forwarder func(impl attention.Impl) attntest.Forwarder
	most      int // cases; 0: all
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

// cases runs the suite on each path.
func (r *run) cases(ctx context.Context) error {
	suite := attntest.NewSuite(attntest.Full, attntest.Reference, attntest.TwicePlain)
	if r.report.Env.CPU {
		suite = attntest.NewSuite(attntest.Short, attntest.Reference, attntest.TwicePlain)
	}
	cases := slices.Clone(suite.Cases)
	slices.SortStableFunc(cases, func(a, b *attntest.Case) int { return cmp.Compare(a.FLOPs(), b.FLOPs()) })
	if r.most > 0 {
		cases = cases[:r.most]
	}
	for _, impl := range r.Impls {
		for _, t := range formats {
			r.report.Paths = append(r.report.Paths, newPath(r.d.Caps(), impl, t))
		}
	}
	defer func() {
		for i := range r.report.Paths {
			r.report.Paths[i].conclude()
		}
	}()
	for i := range r.Impls {
		// What a path leaves of its share, the next ones have.
		left := time.Until(r.start.Add(time.Duration(casesPart * float64(r.Budget))))
		paths := r.report.Paths[i*len(formats) : (i+1)*len(formats)]
		if err := r.path(ctx, suite, cases, paths, time.Now().Add(left/time.Duration(len(r.Impls)-i))); err != nil {
			return err
		}
	}
	return nil
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

// path runs the cases on a path, the cheap ones first, until the deadline. Paths
// are its outcomes, one for each format.
func (r *run) path(ctx context.Context, suite *attntest.Suite, cases []*attntest.Case, paths []Path, deadline time.Time) error {
	impl := paths[0].Impl
	f := r.adapter(ctx, impl)
	for _, c := range cases {
		p := &paths[slices.IndexFunc(paths, func(p Path) bool { return p.DType == c.Problem.DType })]
		if p.Verdict == Unsupported || p.Verdict == Hung || p.Verdict == Lost {
			continue
		}
		if err := refuses(f, c); err != nil {
			p.Refused++
			continue
		}
		if time.Now().After(deadline) {
			p.Left++
			continue
		}
		r.step(fmt.Sprintf("%v: %s", impl, c.Name))
		report, err := suite.Check(c, f)
		if err := r.add(ctx, p, c, report, err); err != nil {
			return err
		}
		if p.Verdict == Hung || p.Verdict == Lost {
			f = r.adapter(ctx, impl) // on the device that was opened anew
		}
	}
	for i := range paths {
		paths[i].conclude()
	}
	return nil
}

// newPath returns the Path of a format, unsupported if there is no problem at
// all that the path takes.
func newPath(caps *vk.Caps, impl attention.Impl, t dtype.DType) Path {
	p := Path{Impl: impl, DType: t}
	if err := attention.Supports(caps, impl, attention.Problem{Batch: 1, NumHeads: 1, NumKVHeads: 1, SeqQ: 64, SeqKV: 64, HeadDim: 64, DType: t}); err != nil {
		p.Verdict, p.Why = Unsupported, bench.Reason(err, impl)
	}
	return p
}

// adapter returns what is tested as a path.
func (r *run) adapter(ctx context.Context, impl attention.Impl) attntest.Forwarder {
	if r.forwarder != nil {
		return r.forwarder(impl)
	}
	return &onDevice{ctx: ctx, d: r.d, impl: impl, hang: r.Hang}
}

func refuses(f attntest.Forwarder, c *attntest.Case) error {
	if s, ok := f.(attntest.Supporter); ok {
		return s.Supports(c.Problem)
	}
	return nil
}

// add adds the outcome of a case. An error means that the test cannot go on.
func (r *run) add(ctx context.Context, p *Path, c *attntest.Case, report attntest.Report, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		p.Right++
		for _, x := range [][2]float64{{report.O.Off, report.Bound.O}, {report.LSE.Off, report.Bound.LSE}} {
			if x[1] > 0 {
				p.Worst = max(p.Worst, x[0]/x[1])
			}
		}
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
