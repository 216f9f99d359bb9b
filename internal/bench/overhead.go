package bench

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/perf/benchfmt"

	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/internal/text"
	"github.com/flashvk/flashvk/vk"
)

// An Overhead is what a call of a path costs the host, on a problem whose work on the device
// hardly counts. All are nanoseconds; each sample is the mean of many.
type Overhead struct {
	Impl, Choice string
	Status       Status
	Reason       string
	Kernels      int       // of a call
	Record       []float64 // host time of recording a call, one of many in a recording
	Fresh        []float64 // host time of Cmd.Reset, recording a call and submitting it, without the wait
	Submit       []float64 // host time of submitting a recorded call, without the wait
	RoundTrip    []float64 // wall clock of submitting a recorded call and waiting for it
	Replay       []float64 // wall clock per kernel of replaying a recording of many calls
	Device       []float64 // device time per kernel in that
	Host         []float64 // the difference
	Cold, Warm   []float64 // wall clock from opening a device to the end of the first call, with an empty cache of pipelines and a full one: see MeasureStarts
}

// overheadCalls is the number of calls of a sample, and of a long recording.
const overheadCalls = 100

// Overheads measures the overhead of each path of c on c.Op, after checking the result. Of
// c.Protocol it uses Samples.
func Overheads(ctx context.Context, d *vk.Device, c Case, progress Progress) ([]Overhead, error) {
	r := newOpRun(d, c)
	defer r.close()
	if err := r.prepare(ctx); err != nil {
		return nil, err
	}
	list := make([]Overhead, len(c.Impls))
	for i, impl := range c.Impls {
		if progress != nil {
			progress(i, len(c.Impls), impl)
		}
		x := &list[i]
		x.Impl, x.Status = impl, StatusUnsupported
		var err error
		if x.Choice, err = r.choose(impl); err != nil {
			x.Reason = Reason(c.Op.Name(), impl, err)
			continue
		}
		result := r.result(impl)
		result.Status = StatusUnsupported
		if _, err := r.check(ctx, r.call(impl), &result); err != nil {
			return nil, err
		}
		x.Status, x.Reason = result.Status, result.Reason
		if x.Status != StatusOK {
			continue
		}
		if err := x.measure(ctx, d, r.call(impl), c.Protocol.Samples); err != nil {
			return nil, fmt.Errorf("%s: %w", impl, err)
		}
	}
	return list, nil
}

// measure takes the samples. The first one warms up and does not count.
func (x *Overhead) measure(ctx context.Context, d *vk.Device, record func(*vk.Cmd, int) error, samples int) error {
	o, err := newOverheadRun(d, record)
	if err != nil {
		return err
	}
	defer o.close()
	if x.Kernels, err = o.kernels(ctx); err != nil {
		return err
	}
	for i := range samples + 1 {
		for _, m := range []struct {
			target *[]float64
			take   func(context.Context) (float64, error)
		}{{&x.Record, o.recordMany}, {&x.Fresh, o.fresh}, {&x.Submit, o.submit}, {&x.RoundTrip, o.roundTrip}} {
			ns, err := m.take(ctx)
			if err != nil {
				return err
			}
			if i > 0 {
				*m.target = append(*m.target, ns)
			}
		}
		wall, device, err := o.replay(ctx)
		if err != nil {
			return err
		}
		if i > 0 {
			n := float64(overheadCalls * x.Kernels)
			x.Replay, x.Device, x.Host = append(x.Replay, wall/n), append(x.Device, device/n), append(x.Host, max(wall-device, 0)/n)
		}
	}
	return nil
}

// overheadRun has the commands of a path.
type overheadRun struct {
	d         *vk.Device
	record    func(*vk.Cmd, int) error
	one, many *vk.Cmd // recordings of one call and of many
	scratch   *vk.Cmd // recorded again and again
	timer     *vk.Timer
}

func newOverheadRun(d *vk.Device, record func(*vk.Cmd, int) error) (_ *overheadRun, err error) {
	o := &overheadRun{d: d, record: record}
	defer func() {
		if err != nil {
			o.close()
		}
	}()
	for _, c := range []**vk.Cmd{&o.one, &o.many, &o.scratch} {
		if *c, err = d.NewCmd("overhead"); err != nil {
			return nil, err
		}
	}
	if o.timer, err = d.NewTimer(2); err != nil {
		return nil, err
	}
	if err := record(o.one, 0); err != nil {
		return nil, err
	}
	o.many.Timestamp(o.timer, 0)
	if err := o.calls(o.many); err != nil {
		return nil, err
	}
	o.many.Timestamp(o.timer, 1)
	return o, nil
}

func (o *overheadRun) close() {
	for _, c := range []*vk.Cmd{o.one, o.many, o.scratch} {
		c.Close()
	}
	o.timer.Close()
}

// calls records many calls.
func (o *overheadRun) calls(c *vk.Cmd) error {
	for range overheadCalls {
		if err := o.record(c, 0); err != nil {
			return err
		}
		c.Barrier() // calls do not overlap
	}
	return c.Err()
}

// kernels counts the dispatches of a call.
func (o *overheadRun) kernels(ctx context.Context) (int, error) {
	trace, err := o.d.NewTrace(maxDispatch)
	if err != nil {
		return 0, err
	}
	defer trace.Close()
	o.scratch.Reset()
	o.scratch.Trace(trace)
	if err := o.record(o.scratch, 0); err != nil {
		return 0, err
	}
	return len(trace.Dispatches()), o.scratch.Submit(ctx)
}

func (o *overheadRun) recordMany(context.Context) (float64, error) {
	o.scratch.Reset()
	start := time.Now()
	err := o.calls(o.scratch)
	return float64(time.Since(start)) / overheadCalls, err
}

func (o *overheadRun) fresh(ctx context.Context) (float64, error) {
	return o.each(ctx, o.scratch, func() error {
		o.scratch.Reset()
		if err := o.record(o.scratch, 0); err != nil {
			return err
		}
		return o.scratch.Start(ctx)
	})
}

func (o *overheadRun) submit(ctx context.Context) (float64, error) {
	return o.each(ctx, o.one, func() error { return o.one.Start(ctx) })
}

func (o *overheadRun) roundTrip(ctx context.Context) (float64, error) {
	return o.each(ctx, o.one, func() error { return o.one.Submit(ctx) })
}

// each returns the mean time of f, which starts c; the waits between do not
// count.
func (o *overheadRun) each(ctx context.Context, c *vk.Cmd, f func() error) (float64, error) {
	sum := time.Duration(0)
	for range overheadCalls {
		start := time.Now()
		if err := f(); err != nil {
			return 0, err
		}
		sum += time.Since(start)
		if err := c.Wait(ctx); err != nil {
			return 0, err
		}
	}
	return float64(sum) / overheadCalls, nil
}

// replay runs the recording of many calls.
func (o *overheadRun) replay(ctx context.Context) (wall, device float64, err error) {
	start := time.Now()
	if err := o.many.Submit(ctx); err != nil {
		return 0, 0, err
	}
	wall = float64(time.Since(start))
	device, err = o.timer.Nanoseconds(0, 1)
	return wall, device, err
}

// OverheadReport is the overheads of the paths of a device.
type OverheadReport struct {
	Env  Environment
	Of   *Subject
	List []Overhead
}

// Sheet shows r.
func (r *OverheadReport) Sheet() sheet.Sheet {
	s := sheet.Sheet{Facts: []sheet.Fact{{Name: "device", Text: r.Env.String()}}}
	if r.Env.CPU {
		s.Facts = append(s.Facts, sheet.Fact{Name: sheet.Warning, Text: CPUWarning})
	}
	var x sheet.Section
	x.Add("problem", "%s", r.Of.title)
	x.Add("record", "host time of recording a call, one of %d in a recording", overheadCalls)
	x.Add("fresh", "host time of a call from nothing: reset, record, submit; without the wait; %s", IntervalWords)
	x.Add("submit", "host time of submitting a recorded call, without the wait")
	x.Add("trip", "wall clock of submitting a recorded call and waiting for it")
	starts := slices.ContainsFunc(r.List, func(o Overhead) bool { return len(o.Cold) > 0 })
	if starts {
		x.Add("cold", "wall clock from opening the device to the end of the first call, with no pipeline compiled, upload of the inputs included")
		x.Add("warm", "the same with the pipelines in the cache that the former left")
	}
	x.Add("replay", "wall clock per kernel of replaying a recording of %d calls; of which the device works, and the rest, per kernel", overheadCalls)
	names := []string{"impl", "kernels", "record", "fresh", "submit", "trip", "replay", "device", "rest", "±"}
	if starts {
		names = append(names, "cold", "warm")
	}
	x.Columns = columns(append(names, "runs"), "impl", "runs")
	for _, o := range r.List {
		switch o.Status {
		case StatusUnsupported:
			x.Note("%s is not supported: %s", o.Impl, text.Line(o.Reason))
			continue
		case StatusFailed:
			x.Note("%s FAILED and was not timed: %s", o.Impl, text.Line(o.Reason))
			continue
		}
		row := []string{o.Impl, fmt.Sprint(o.Kernels)}
		for _, list := range [][]float64{o.Record, o.Fresh, o.Submit, o.RoundTrip, o.Replay, o.Device, o.Host} {
			row = append(row, FormatTime(Summarize(list).Median))
		}
		row = append(row, Summarize(o.Fresh).PlusMinus())
		if starts {
			row = append(row, orDash(FormatTime, Summarize(o.Cold).Median), orDash(FormatTime, Summarize(o.Warm).Median))
		}
		x.Rows = append(x.Rows, append(row, o.Choice))
	}
	s.Sections = []sheet.Section{x}
	return s
}

// WriteBenchfmt writes a line per sample of each path.
func (r *OverheadReport) WriteBenchfmt(w io.Writer) error {
	out := benchfmt.NewWriter(w)
	config := Report{Env: r.Env}.fileConfig()
	for _, o := range r.List {
		for i := range o.Fresh {
			res := &benchfmt.Result{Config: config, Name: benchfmt.Name(fmt.Sprintf("%sOverhead/impl=%s/%s", strings.TrimSuffix(r.Of.benchmark, "Fwd"), o.Impl, r.Of.params)), Iters: overheadCalls}
			for _, v := range []struct {
				unit string
				list []float64
			}{
				{"record-ns/op", o.Record}, {"fresh-ns/op", o.Fresh}, {"submit-ns/op", o.Submit}, {"trip-ns/op", o.RoundTrip},
				{"replay-ns/kernel", o.Replay}, {"device-ns/kernel", o.Device}, {"host-ns/kernel", o.Host},
			} {
				res.Values = append(res.Values, benchfmt.Value{Value: v.list[i], Unit: v.unit})
			}
			if i < len(o.Cold) && i < len(o.Warm) {
				res.Values = append(res.Values, benchfmt.Value{Value: o.Cold[i], Unit: "cold-start-ns"}, benchfmt.Value{Value: o.Warm[i], Unit: "warm-start-ns"})
			}
			if err := out.Write(res); err != nil {
				return err
			}
		}
	}
	return nil
}
