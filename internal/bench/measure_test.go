package bench

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

func TestProtocol(t *testing.T) {
	pr := Protocol{Samples: 10, SampleTime: 20 * time.Millisecond, WallTime: time.Second, CacheBytes: 256 << 20}
	for _, c := range []struct {
		name      string
		got, want int
	}{
		{"1 ms calls", pr.batch(1e6, 0), 20},
		{"1 s calls", pr.batch(1e9, 0), 1},
		{"1 µs calls", pr.batch(1e3, 0), MaxBatchCalls},
		{"a clock that stands still", pr.batch(0, 0), MaxBatchCalls},
		{"limited", pr.batch(1e6, 7), 7},
		{"wall samples of 10 µs calls", pr.wallSamples(1e4), 10},
		{"wall samples of 200 ms calls", pr.wallSamples(2e8), 5},
		{"wall samples of 10 s calls", pr.wallSamples(1e10), minWallSamples},
		{"wall samples of 3 samples", Protocol{Samples: 2}.wallSamples(1e10), 2},
		{"sets of 100 MB", pr.sets(100e6), 2},
		{"sets of 1 GB", pr.sets(1e9), 1},
		{"sets of 1 kB", pr.sets(1e3), maxSets},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d, want %d", c.name, c.got, c.want)
		}
	}
	pr.Iters = 101
	if got := pr.batch(1e9, 0); got != 11 {
		t.Errorf("101 iterations in 10 samples: %d per sample, want 11", got)
	}
	for _, cpu := range []bool{false, true} {
		if pr := DefaultProtocol(cpu); pr.Samples < 10 || !cpu && pr.WarmupTime < 300*time.Millisecond {
			t.Errorf("default protocol: %+v", pr)
		}
	}
}

// quick is a protocol for tests.
func quick() Protocol {
	return Protocol{Samples: 3, Warmup: 2, WarmupTime: time.Millisecond, SampleTime: time.Millisecond, WallTime: time.Millisecond, CacheBytes: 1 << 20}
}

func TestMeasure(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	const bytes = 1 << 20
	var buffers []*vk.Buffer
	for range 2 {
		b, err := d.NewBuffer("fill", bytes)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		buffers = append(buffers, b)
	}
	recorded, cleared := 0, map[int]bool{}
	var verified []int
	fill := Target{
		Name: "fill",
		Record: func(c *vk.Cmd, set int) error {
			recorded++
			c.Fill(buffers[set], 0, bytes, 7)
			return c.Err()
		},
		Clear: func(_ context.Context, set int) error { cleared[set] = true; return nil },
		Verify: func(_ context.Context, set int) error {
			if !cleared[set] {
				t.Errorf("set %d was not cleared", set)
			}
			verified = append(verified, set)
			return nil
		},
	}
	wrong := fill
	wrong.Name = "wrong"
	wrong.Verify = func(context.Context, int) error { return errors.New("not what it was") }
	limited := fill
	limited.Name, limited.MaxBatch = "limited", 1

	pr := quick()
	pr.Iters = 3 * 200
	steps := 0
	start := time.Now()
	got, err := Measure(context.Background(), d, []Target{fill, wrong, limited}, 2, pr, func() { steps++ })
	if err != nil {
		t.Fatal(err)
	}
	elapsed := time.Since(start)
	if want := MeasureSteps(3, pr); steps != want {
		t.Errorf("%d steps, want %d", steps, want)
	}
	for i, want := range []Timing{{Iters: 200, Sets: 2}, {Iters: 200, Sets: 2}, {Iters: 1, Sets: 1}} {
		tm := got[i].Timing
		if tm.Iters != want.Iters || tm.Sets != want.Sets || len(tm.DeviceNS) != pr.Samples || len(tm.ReplayNS) != len(tm.FreshNS) || len(tm.FreshNS) < minWallSamples {
			t.Errorf("target %d: %+v", i, tm)
		}
		total := 0.0
		for _, ns := range tm.DeviceNS {
			total += ns * float64(tm.Iters)
		}
		if total > float64(elapsed) { // a sample is the mean of its calls, not their sum
			t.Errorf("target %d: samples %v of %d calls take longer than %v", i, tm.DeviceNS, tm.Iters, elapsed)
		}
		for _, list := range [][]float64{tm.DeviceNS, tm.ReplayNS, tm.FreshNS} {
			for _, ns := range list {
				if !(ns > 0) || ns > float64(elapsed) {
					t.Errorf("target %d: sample of %v ns", i, ns)
				}
			}
		}
	}
	if got[0].Err != nil || got[1].Err == nil || got[2].Err != nil {
		t.Errorf("verdicts %v, %v, %v", got[0].Err, got[1].Err, got[2].Err)
	}
	if len(verified) != 3 { // two sets of fill, one of limited
		t.Errorf("sets %v were verified", verified)
	}
}

// TestWarmUp says that the warm-up lasts as long as both of its rules say, and
// that a cancelled context ends it.
func TestWarmUp(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	b, err := d.NewBuffer("fill", 1<<16)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	nothing := func(context.Context, int) error { return nil }
	fill := Target{Name: "fill", Clear: nothing, Verify: nothing, Record: func(c *vk.Cmd, _ int) error {
		c.Fill(b, 0, 1<<16, 7)
		return c.Err()
	}}
	// The warm-up lasts as long as both of its rules say.
	pr := Protocol{Samples: 1, Iters: 1, Warmup: 50, WarmupTime: 50 * time.Millisecond}
	start := time.Now()
	got, err := Measure(context.Background(), d, []Target{fill}, 1, pr, func() {})
	if elapsed := time.Since(start); err != nil || elapsed < pr.WarmupTime || got[0].Timing.Warmup < pr.Warmup {
		t.Errorf("warm-up of %d calls in %v, want %d in %v (%v)", got[0].Timing.Warmup, elapsed, pr.Warmup, pr.WarmupTime, err)
	}
	pr.WarmupTime = 0
	if got, err := Measure(context.Background(), d, []Target{fill}, 1, pr, func() {}); err != nil || got[0].Timing.Warmup != pr.Warmup {
		t.Errorf("warm-up of %d calls, want %d (%v)", got[0].Timing.Warmup, pr.Warmup, err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Measure(ctx, d, []Target{fill}, 1, pr, func() {}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestMeasureError says that an error of recording ends the run and names the
// target.
func TestMeasureError(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	bad := Target{Name: "bad", Record: func(*vk.Cmd, int) error { return errors.New("cannot be recorded") }}
	_, err := Measure(context.Background(), d, []Target{bad}, 1, quick(), func() {})
	if err == nil || err.Error() != "bad: cannot be recorded" {
		t.Error(err)
	}
}

func smallProblem() attention.Problem {
	return attention.Problem{Batch: 2, NumHeads: 2, NumKVHeads: 1, SeqQ: 33, SeqKV: 50, HeadDim: 16, DType: dtype.Float16, Causal: true}
}

// opOf returns the Op of a problem of attention.
func opOf(t *testing.T, p attention.Problem) *AttentionOp {
	t.Helper()
	op, err := NewAttention(p)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// namesOf returns the names of paths.
func namesOf(impls ...attention.Impl) (names []string) {
	for _, i := range impls {
		names = append(names, i.String())
	}
	return names
}

// TestAttention measures every path that the device has.
func TestAttention(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	p := smallProblem()
	impls := append([]attention.Impl{attention.Auto}, attention.Impls()...)
	last, ends := 0, 0
	op := opOf(t, p)
	results, err := Run(context.Background(), d, Case{Op: op, Impls: namesOf(impls...), Protocol: quick()}, func(done, total int, what string) {
		if done < last || done > total || what == "" {
			t.Errorf("step %d of %d after %d: %q", done, total, last, what)
		}
		last, ends = done, total
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, impl := range impls {
		x := results[i]
		err := attention.Supports(d.Caps(), p, kit.Forward, attention.Options{Impl: impl})
		if x.Impl != impl.String() || x.Subject.params != p.String() || x.Kernel != "attention_fwd" {
			t.Errorf("%+v", x)
		}
		if err != nil {
			if x.Status != StatusUnsupported || x.Reason == "" || len(x.Timing.DeviceNS) != 0 {
				t.Errorf("%v is not supported (%v), but %+v", impl, err, x)
			}
			continue
		}
		if x.Status != StatusOK || x.Check.Rows != 132 || x.Check.MaxAbs == 0 || x.Check.MaxAbs > x.Check.Limit || len(x.Timing.DeviceNS) != 3 || x.FLOPRate() <= 0 || x.ByteRate() <= 0 {
			t.Errorf("%+v", x)
		}
		if x.Timing.Sets < 2 && x.Timing.Iters > 1 {
			t.Errorf("%v: %d calls on one set", impl, x.Timing.Iters)
		}
	}
	if n := len(impls); last != ends && results[n-1].Status == StatusOK {
		t.Errorf("progress ended at step %d of %d", last, ends)
	}

	// One set of buffers: calls of a batch write the same outputs, and the
	// validation layer sees whether a barrier stands between them.
	pr := quick()
	pr.Iters, pr.CacheBytes = 9, 1
	one, err := Run(context.Background(), d, Case{Op: op, Impls: []string{"scalar"}, Protocol: pr}, nil)
	if err != nil || one[0].Timing.Sets != 1 || one[0].Timing.Iters != 3 {
		t.Errorf("one set: %+v, %v", one, err)
	}

	p.NumHeads = 0
	if _, err := NewAttention(p); err == nil {
		t.Error("a problem without heads is measured")
	}
	d.Caps().CoopMat = false
	results, err = Run(context.Background(), d, Case{Op: op, Impls: []string{"coopmat"}, Protocol: quick()}, nil)
	if err != nil || results[0].Status != StatusUnsupported {
		t.Errorf("%+v, %v", results, err)
	}
}

// TestAttentionWrong says that a kernel whose result is wrong fails its check,
// by the name of what is wrong, and that outputs that change after the check
// are noticed.
func TestAttentionWrong(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	ctx := context.Background()
	r := newOpRun(d, Case{Op: opOf(t, smallProblem())})
	defer r.close()
	if err := r.prepare(ctx); err != nil {
		t.Fatal(err)
	}
	with := func(change func(*attention.Problem)) func(*vk.Cmd, int) error {
		p := smallProblem()
		change(&p)
		op := opOf(t, p)
		return func(c *vk.Cmd, set int) error { return r.record(c, set, op, "scalar") }
	}
	for _, c := range []struct {
		name   string
		record func(*vk.Cmd, int) error
		want   string
	}{
		{"right", with(func(*attention.Problem) {}), ""},
		{"writes nothing", func(*vk.Cmd, int) error { return nil }, "NaN"},
		{"wrong scale", with(func(p *attention.Problem) { p.Scale = 0.3 }), "O["},
		{"no mask", with(func(p *attention.Problem) { p.Causal = false }), "O["},
		{"top-left mask", with(func(p *attention.Problem) { p.CausalAlign = attention.TopLeft }), "O["},
	} {
		var x Result
		target, err := r.check(ctx, c.record, &x)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if c.want == "" {
			if x.Status != StatusOK || target.Record == nil {
				t.Fatalf("%s: %+v", c.name, x)
			}
			if err := target.Verify(ctx, 0); err != nil {
				t.Errorf("%s: %v", c.name, err)
			}
			if err := target.Clear(ctx, 0); err != nil {
				t.Fatal(err)
			}
			if err := target.Verify(ctx, 0); err == nil {
				t.Error("cleared outputs pass for those that were checked")
			}
			continue
		}
		if x.Status != StatusFailed || !strings.Contains(x.Reason, c.want) || target.Record != nil || x.Check.MaxAbs <= x.Check.Limit {
			t.Errorf("%s: %+v, want %q", c.name, x, c.want)
		}
	}

	// Copies of the inputs give the same outputs.
	if err := r.addSets(ctx, 3); err != nil {
		t.Fatal(err)
	}
	var x Result
	target, err := r.check(ctx, r.call("scalar"), &x)
	if err != nil || x.Status != StatusOK {
		t.Fatalf("%+v, %v", x, err)
	}
	c, err := d.NewCmd("last set")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := errors.Join(target.Record(c, 2), c.Submit(ctx), target.Verify(ctx, 2)); err != nil {
		t.Error(err)
	}
	if err := target.Verify(ctx, 1); err == nil {
		t.Error("a set that was never computed passes")
	}
}

// TestMaxCalls says that a batch of the unfused path stays within the memory
// that its copies of S may take.
func TestMaxCalls(t *testing.T) {
	p := attention.Problem{Batch: 2, NumHeads: 8, NumKVHeads: 8, SeqQ: 1024, SeqKV: 1024, HeadDim: 64}
	if got := opOf(t, p).MaxCalls("unfused", Forward); got != 32 { // 64 MiB each
		t.Errorf("%d, want 32", got)
	}
	if got := opOf(t, p).MaxCalls("unfused", Both); got != 10 {
		t.Errorf("%d, want 10", got)
	}
	p.SeqQ, p.SeqKV = 100000, 100000
	if got := opOf(t, p).MaxCalls("unfused", Forward); got != 1 {
		t.Errorf("%d, want 1", got)
	}
	if got := opOf(t, p).MaxCalls("scalar", Forward); got != 0 {
		t.Errorf("%d, want no limit", got)
	}
}
