package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/perf/benchfmt"

	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/vk"
)

// An Overhead is what a call of a path costs the host, on a problem whose work on the device
// hardly counts.
type Overhead struct {
	Result
	Kernels int                  // of a call
	NS      map[string][]float64 // samples of each of overheads, each the mean of many
}

// overheads are what is measured, in nanoseconds, with the unit in the Go benchmark format.
var overheads = []struct{ name, unit, about string }{
	{"record", "record-ns/op", "host time of recording a call, one of 100 in a recording"},
	{"fresh", "fresh-ns/op", "host time of a call from nothing: reset, record, submit; without the wait"},
	{"submit", "submit-ns/op", "host time of submitting a recorded call, without the wait"},
	{"trip", "trip-ns/op", "wall clock of submitting a recorded call and waiting for it"},
	{"replay", "replay-ns/kernel", "wall clock per kernel of replaying a recording of 100 calls"},
	{"device", "device-ns/kernel", "of that the device works, per kernel"},
	{"rest", "host-ns/kernel", "the rest of that"},
	{"cold", "cold-start-ns", "wall clock from opening the device to the end of the first call, with no pipeline compiled, upload of the inputs included"},
	{"warm", "warm-start-ns", "the same with the pipelines in the cache that the former left"},
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
		x.Result, x.NS = r.result(impl), map[string][]float64{}
		x.Status = StatusUnsupported
		var err error
		if x.Choice, err = r.choose(impl); err != nil {
			x.Reason = Reason(c.Op.Name(), impl, err)
			continue
		}
		if _, err = r.check(ctx, r.call(impl), &x.Result); err == nil && x.Status == StatusOK {
			err = x.measure(ctx, d, r.call(impl), c.Protocol.Samples)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", impl, err)
		}
	}
	return list, nil
}

// measure takes the samples. The first one warms up and does not count.
func (x *Overhead) measure(ctx context.Context, d *vk.Device, record func(*vk.Cmd, int) error, samples int) error {
	one, err := d.NewCmd("overhead")
	if err != nil {
		return err
	}
	defer one.Close()
	if err := record(one, 0); err != nil {
		return err
	}
	scratch, err := newTimed(d, "overhead") // recorded again and again
	if err != nil {
		return err
	}
	defer scratch.close()
	trace, err := d.NewTrace(maxDispatch)
	if err != nil {
		return err
	}
	defer trace.Close()
	scratch.cmd.Trace(trace)
	if err := errors.Join(record(scratch.cmd, 0), scratch.cmd.Submit(ctx)); err != nil {
		return err
	}
	x.Kernels = len(trace.Dispatches())
	fresh := func() error {
		scratch.cmd.Reset()
		return errors.Join(record(scratch.cmd, 0), scratch.cmd.Start(ctx))
	}
	for i := range samples + 1 {
		if i == 1 {
			clear(x.NS)
		}
		for _, m := range []struct {
			name string
			cmd  *vk.Cmd
			call func() error
		}{
			{"fresh", scratch.cmd, fresh}, {"submit", one, func() error { return one.Start(ctx) }}, {"trip", one, func() error { return one.Submit(ctx) }},
		} {
			sum := time.Duration(0)
			for range overheadCalls {
				start := time.Now()
				if err := m.call(); err != nil {
					return err
				}
				sum += time.Since(start)
				if err := m.cmd.Wait(ctx); err != nil {
					return err
				}
			}
			x.add(m.name, float64(sum)/overheadCalls)
		}
		start := time.Now()
		if err := scratch.record(record, 1, overheadCalls); err != nil {
			return err
		}
		recorded := time.Now()
		device, err := scratch.run(ctx)
		if err != nil {
			return err
		}
		wall := float64(time.Since(recorded)) / overheadCalls
		n := float64(x.Kernels)
		x.add("record", float64(recorded.Sub(start))/overheadCalls)
		x.add("replay", wall/n)
		x.add("device", device/n)
		x.add("rest", max(wall-device, 0)/n)
	}
	return nil
}

func (x *Overhead) add(name string, ns float64) { x.NS[name] = append(x.NS[name], ns) }

// MeasureStarts completes overheads by cold and warm starts: opening a device and a first call of
// each path of c that is right, with an empty cache of compiled pipelines, and with the cache of the
// cold start. Open opens the device with a folder for the cache. Caches of drivers on disk are off,
// unless the user has set their variables: a start would find what an earlier one compiled.
func MeasureStarts(ctx context.Context, open func(cacheDir string) (*vk.Device, error), c Case, list []Overhead) error {
	const most = 3 // starts, which may take seconds
	for name, off := range map[string]string{"MESA_SHADER_CACHE_DISABLE": "true", "__GL_SHADER_DISK_CACHE": "0"} {
		if _, ok := os.LookupEnv(name); !ok && os.Setenv(name, off) == nil {
			defer os.Unsetenv(name)
		}
	}
	sample := func(x *Overhead) error {
		dir, err := os.MkdirTemp("", "flashvk-start-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		for _, name := range []string{"cold", "warm"} {
			ns, err := start(ctx, open, dir, c, x.Impl)
			if err != nil {
				return err
			}
			x.add(name, ns)
		}
		return nil
	}
	for i := range list {
		for n := 0; n < min(c.Protocol.Samples, most) && list[i].Status == StatusOK; n++ {
			if err := sample(&list[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// start returns the time from before a device is opened to the end of the first call.
func start(ctx context.Context, open func(string) (*vk.Device, error), dir string, c Case, impl string) (ns float64, err error) {
	r := newOpRun(nil, c)
	r.draw()
	begin := time.Now()
	if r.d, err = open(dir); err != nil {
		return 0, err
	}
	defer r.d.Close()
	defer r.close()
	if err := r.addSet(); err != nil {
		return 0, err
	}
	if err := r.restore(ctx); err != nil {
		return 0, err
	}
	err = r.d.Run(ctx, "first call", func(c *vk.Cmd) error { return r.record(c, 0, r.op, impl) })
	return float64(time.Since(begin)), err
}

// OverheadReport is the overheads of the paths of a device.
type OverheadReport struct {
	Env  Environment
	Of   *Subject
	List []Overhead
}

// Sheet shows r.
func (r *OverheadReport) Sheet() sheet.Sheet {
	var x sheet.Section
	x.Add("problem", "%s", r.Of.title)
	cells := []sheet.Cell[Overhead]{
		{Name: "impl", Text: true, Of: func(o Overhead) string { return o.Impl }},
		{Name: "kernels", Of: func(o Overhead) string { return fmt.Sprint(o.Kernels) }},
	}
	var rows []Overhead
	measured := map[string]bool{}
	for _, o := range r.List {
		if text := o.complaint(); text != "" {
			x.Note("%s", text)
			continue
		}
		rows = append(rows, o)
		for name := range o.NS {
			measured[name] = true
		}
	}
	for _, m := range overheads {
		if measured[m.name] {
			x.Add(m.name, "%s", m.about)
			cells = append(cells, sheet.Cell[Overhead]{Name: m.name, Of: func(o Overhead) string { return orDash(FormatTime, Summarize(o.NS[m.name]).Median) }})
		}
	}
	x.Add("±", "of fresh, %s", IntervalWords)
	sheet.Fill(&x, rows, append(cells,
		sheet.Cell[Overhead]{Name: "±", Of: func(o Overhead) string { return Summarize(o.NS["fresh"]).PlusMinus() }},
		sheet.Cell[Overhead]{Name: "runs", Text: true, Of: func(o Overhead) string { return o.Choice }})...)
	s := r.Env.Sheet()
	s.Sections = append(s.Sections, x)
	return s
}

// WriteBenchfmt writes a line per sample of each path.
func (r *OverheadReport) WriteBenchfmt(w io.Writer) error {
	out := benchfmt.NewWriter(w)
	config := Report{Env: r.Env}.fileConfig()
	for _, o := range r.List {
		for i := range o.NS["fresh"] {
			res := &benchfmt.Result{Config: config, Name: benchfmt.Name(fmt.Sprintf("%sOverhead/impl=%s/%s", strings.TrimSuffix(r.Of.benchmark, "Fwd"), o.Impl, r.Of.params)), Iters: overheadCalls}
			for _, m := range overheads {
				if i < len(o.NS[m.name]) {
					res.Values = append(res.Values, benchfmt.Value{Value: o.NS[m.name][i], Unit: m.unit})
				}
			}
			if err := out.Write(res); err != nil {
				return err
			}
		}
	}
	return nil
}
