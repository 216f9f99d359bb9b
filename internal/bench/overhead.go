package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/flashvk/flashvk/internal/bench/sheet"
	"github.com/flashvk/flashvk/vk"
)

// overheads are what is measured, in nanoseconds, with the unit in the Go benchmark format.
var overheads = []struct{ name, unit, about string }{
	{"record", "record-ns/op", "host time of recording a call, one of 100 in a recording"},
	{"fresh", "fresh-ns/op", "host time of a call from nothing: reset, record, submit; without the wait"},
	{"submit", "submit-ns/op", "host time of submitting a recorded call, without the wait"},
	{"trip", "trip-ns/op", "wall clock of submitting a recorded call and waiting for it"},
	{"replay", "replay-ns/kernel", "wall clock per kernel of replaying a recording of 100 calls"},
	{"device", "device-ns/kernel", "time of a replay in which the device works, per kernel"},
	{"rest", "host-ns/kernel", "replay less device"},
	{"cold", "cold-start-ns", "wall clock from opening the device to the end of the first call, with no pipeline compiled, upload of the inputs included"},
	{"warm", "warm-start-ns", "the same with the pipelines in the cache that the former left"},
}

// overheadCalls is the number of calls of a sample, and of a long recording.
const overheadCalls = 100

// Overheads measures what a call of each path of c costs the host, on a problem whose work on the
// device hardly counts, beside what Run measures.
func Overheads(ctx context.Context, d *vk.Device, c Case, progress Progress) ([]Result, error) {
	return run(ctx, d, c, progress, func(ctx context.Context, _ *opRun, t Target, x *Result) error {
		x.Host = map[string][]float64{}
		return x.overhead(ctx, d, t.Record, c.Protocol.Samples)
	})
}

// overhead takes the samples. The first one warms up and does not count.
func (x *Result) overhead(ctx context.Context, d *vk.Device, record func(*vk.Cmd, int) error, samples int) error {
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
	kernels := float64(len(trace.Dispatches()))
	fresh := func() error {
		scratch.cmd.Reset()
		return errors.Join(record(scratch.cmd, 0), scratch.cmd.Start(ctx))
	}
	for i := range samples + 1 {
		if i == 1 {
			clear(x.Host)
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
		x.add("record", float64(recorded.Sub(start))/overheadCalls)
		x.add("replay", wall/kernels)
		x.add("device", device/kernels)
		x.add("rest", max(wall-device, 0)/kernels)
		x.add("kernels", kernels)
	}
	return nil
}

func (x *Result) add(name string, n float64) { x.Host[name] = append(x.Host[name], n) }

// MeasureStarts completes what Overheads returned by cold and warm starts: opening a device and a first call of
// each path of c that is right, with an empty cache of compiled pipelines, and with the cache of the
// cold start. Open opens the device with a folder for the cache. Caches of drivers on disk are off,
// unless the user has set their variables: a start would find what an earlier one compiled.
func MeasureStarts(ctx context.Context, open func(cacheDir string) (*vk.Device, error), c Case, list []Result) error {
	const most = 3 // starts, which may take seconds
	for name, off := range map[string]string{"MESA_SHADER_CACHE_DISABLE": "true", "__GL_SHADER_DISK_CACHE": "0"} {
		if _, ok := os.LookupEnv(name); !ok && os.Setenv(name, off) == nil {
			defer os.Unsetenv(name)
		}
	}
	sample := func(x *Result) error {
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
	err = r.d.Run(ctx, "first call", func(c *vk.Cmd) error { return r.call(r.op, impl)(c, 0) })
	return float64(time.Since(begin)), err
}

// overheadTable shows results of Overheads.
func overheadTable(s *sheet.Section, rows []row) {
	cells := []cell{
		{Name: "impl", Text: true, Of: func(x row) string { return x.Impl }},
		{Name: "kernels", Of: func(x row) string { return fmt.Sprint(Summarize(x.Host["kernels"]).Median) }},
	}
	for _, m := range overheads {
		if slices.ContainsFunc(rows, func(x row) bool { return len(x.Host[m.name]) > 0 }) {
			s.Add(m.name, "%s", m.about)
			cells = append(cells, number(m.name, false, func(x row) string { return orDash(FormatTime, Summarize(x.Host[m.name]).Median) }))
		}
	}
	s.Add("±", "of fresh, %s", IntervalWords)
	sheet.Fill(s, rows, append(cells,
		number("±", false, func(x row) string { return Summarize(x.Host["fresh"]).PlusMinus() }),
		cell{Name: "runs", Text: true, Of: func(x row) string { return x.Choice }})...)
}
