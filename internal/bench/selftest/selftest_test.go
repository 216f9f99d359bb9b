package selftest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/conformance"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
	"github.com/flashvk/flashvk/vk/kit"
)

// options opens the device of the tests.
func options(t *testing.T, budget time.Duration, impls ...attention.Impl) (bench.Environment, Options) {
	t.Helper()
	caps := vktest.Open(t).Caps()
	index := fmt.Sprint(caps.Index)
	return bench.Environment{Device: caps.Name, CPU: caps.Type == vk.CPU}, Options{
		Impls: impls, Budget: budget, Hang: time.Hour,
		Open: func() (*vk.Device, error) { return vk.Open(vk.Options{Device: index, Name: t.Name()}) },
	}
}

// TestRun tests the scalar path of the device, on the cheapest cases.
func TestRun(t *testing.T) {
	env, o := options(t, time.Hour, attention.Scalar)
	r := newRun(env, o)
	r.most, r.workers = 12, 4
	r.progress = func(done, total int, what string) {
		require.LessOrEqual(t, done, total)
		require.NotEmpty(t, what)
	}
	require.NoError(t, r.run(context.Background()))
	report := r.report
	require.NoError(t, report.Err())
	require.Len(t, report.Paths, 15)
	var text strings.Builder
	require.NoError(t, bench.WriteSheet(&text, report.Sheet(), bench.Table, true))
	for i, what := range []string{"forward", "backward", "decode", "step", "append"} {
		for _, p := range report.Paths[3*i:][:3] {
			require.Equal(t, what, p.What)
			require.Contains(t, []Verdict{Pass, Unsupported}, p.Verdict, p.Why)
		}
		p := report.Paths[3*i+2] // float32
		require.Equal(t, Pass, p.Verdict, p.Why)
		require.Greater(t, p.Right, 1)
		require.LessOrEqual(t, p.Worst, 1.0)
		require.True(t, p.Worst > 0 || what == "append")
		require.Regexp(t, `\nscalar +`+what+` +float32 +pass +\d+ +0 `, text.String())
	}
	require.Len(t, report.Ceilings, 5)
	for _, want := range []string{"attention_fwd_scalar.f32", "attention_bwd_dq_scalar.f32", "attention_decode.f32", "attention_decode_append.f32", "attention_append.f32", "attention_advance", "micro_copy"} {
		i := slices.IndexFunc(report.Record.Modules, func(m conformance.Module) bool { return m.Name == want })
		require.GreaterOrEqual(t, i, 0, "%s did not run", want)
		require.Positive(t, report.Record.Modules[i].Fixed)
		require.Zero(t, report.Record.Modules[i].Wrong)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Run(ctx, env, o, nil)
	require.ErrorIs(t, err, context.Canceled)

	// Without time the ceilings are known and nothing else.
	o.Budget = time.Nanosecond
	report, err = Run(context.Background(), env, o, nil)
	require.NoError(t, err)
	require.Positive(t, report.Took)
	require.Equal(t, NotRun, report.Paths[2].Verdict)
	require.Contains(t, report.Paths[2].Why, "there was no time for any of ")
	require.NoError(t, report.Err())
}

// failing returns a check that returns err from the nth call on, of float32.
func failing(n int, err error) func(context.Context, *trial.Runner, *item) (float64, error) {
	var mu sync.Mutex
	return func(_ context.Context, _ *trial.Runner, it *item) (float64, error) {
		mu.Lock()
		defer mu.Unlock()
		if it.format != dtype.Float32 {
			return 0, nil
		}
		if n--; n < 0 {
			return 0, err
		}
		return 0.5, nil
	}
}

// TestVerdicts gives the test kernels that are broken in one way each.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name  string
		after int // cases of float32
		err   error
		want  Verdict
		why   string
		opens int
	}{
		{"right", 1000, nil, Pass, "", 1},
		{"wrong", 2, errors.New("o[3] = 1, want 2"), Wrong, "/float32: o[3] = 1", 1},
		{"hung", 4, fmt.Errorf("vk: still running: %w", context.DeadlineExceeded), Hung, "a call did not come back within 1h0m0s", 1},
		{"lost", 4, vk.ErrDeviceLost, Lost, "VK_ERROR_DEVICE_LOST", 3},
		{"refuses all", 0, vk.ErrUnsupported, NotRun, "the test ended before", 1},
	} {
		for _, workers := range []int{1, 8} {
			t.Run(fmt.Sprintf("%s/%d", c.name, workers), func(t *testing.T) {
				env, o := options(t, time.Hour, attention.Unfused)
				opens, open := 0, o.Open
				o.Open = func() (*vk.Device, error) { opens++; return open() }
				r := newRun(env, o)
				r.most, r.workers, r.check = 30, workers, failing(c.after, c.err)
				var err error
				r.d, err = r.Open()
				require.NoError(t, err)
				require.NoError(t, r.cases(context.Background()))
				require.NoError(t, r.d.Close())
				require.Equal(t, c.opens, opens)
				bad := slices.IndexFunc(r.report.Paths, func(p *Path) bool { return p.DType == dtype.Float32 && p.Verdict != Pass })
				if c.want == Pass {
					require.Negative(t, bad)
					require.Equal(t, 0.5, r.report.Paths[2].Worst)
					require.NoError(t, r.report.Err())
					return
				}
				require.GreaterOrEqual(t, bad, 0)
				p := r.report.Paths[bad]
				require.Equal(t, c.want, p.Verdict, p.Why)
				require.Contains(t, p.Why, c.why)
				if c.want == Hung || c.want == Lost {
					require.Equal(t, 1, p.Bad, "a path was used again after it hung")
				}
				require.Equal(t, c.want != NotRun, r.report.Err() != nil)
				require.Equal(t, Pass, r.report.Paths[0].Verdict, "another format: %s", r.report.Paths[0].Why)
			})
		}
	}
}

// made returns items of a lane.
func made(n int) (list []*item) {
	of := new(lane)
	for i := range n {
		list = append(list, &item{name: fmt.Sprint(i), path: new(Path), lane: of})
	}
	return list
}

// TestTake gives one path items that take ten times as long: it gets a tenth as many.
func TestTake(t *testing.T) {
	slow, fast := made(100), made(100)
	items, now, slowly := append(slices.Clone(slow), fast...), time.Hour, 0
	for range 55 {
		it := take(&items, now)
		if now += time.Second; it.lane == slow[0].lane {
			slowly++
			now += 9 * time.Second
		}
		it.end(now)
	}
	require.InDelta(t, 5, slowly, 1)
	a, b := take(&items, now), take(&items, now)
	require.NotSame(t, a.lane, b.lane, "two that begin together are of one path")
	require.Len(t, items, 143)
	items = nil
	require.Nil(t, take(&items, now))
}

// TestAlone has cases that find no memory beside others, and cases that never find any.
func TestAlone(t *testing.T) {
	var running atomic.Int32
	r := newRun(bench.Environment{}, Options{Budget: time.Hour})
	r.workers = 4
	r.check = func(context.Context, *trial.Runner, *item) (float64, error) {
		defer running.Add(-1)
		if running.Add(1) > 1 {
			return 0, fmt.Errorf("vkAllocateMemory: %w", vk.ErrOutOfDeviceMemory)
		}
		time.Sleep(time.Millisecond)
		return 0, nil
	}
	for _, want := range []Path{{Right: 1}, {Refused: 1}} {
		items := made(20)
		require.NoError(t, r.runItems(context.Background(), items, time.Now().Add(time.Hour)))
		for _, it := range items {
			require.Equal(t, want, *it.path, "item %s", it.name)
		}
		r.check = func(context.Context, *trial.Runner, *item) (float64, error) { return 0, vk.ErrOutOfDeviceMemory }
	}
}

// TestSample says that both suites of a GPU compare their largest cases on a sample.
func TestSample(t *testing.T) {
	for _, pass := range []kit.Pass{kit.Forward, kit.Backward} {
		sampled := 0
		for _, it := range ofAttention(attention.Unfused, attntest.Cases(attntest.Full, pass)) {
			if it.problem.Given().Sample > 0 {
				sampled++
				require.Contains(t, it.name, "large/")
			}
		}
		require.Equal(t, 21, sampled, pass)
	}
}

// TestSlow says when the speed of a path is suspicious, and how the report says so.
func TestSlow(t *testing.T) {
	rate := func(name string, flops float64) bench.Ceiling {
		return bench.Ceiling{Name: name, Work: flops, Timing: bench.Timing{DeviceNS: []float64{1e9}}}
	}
	result := func(impl attention.Impl, ns float64) bench.Result {
		return bench.Result{Impl: impl.String(), Status: bench.StatusOK, Timing: bench.Timing{DeviceNS: []float64{ns}}}
	}
	for _, c := range []struct {
		matrix, coopmat float64
		cpu             bool
		want            Verdict
		why             string
	}{
		{600e12, 10, false, Pass, ""},
		{600e12, 90, false, Slow, "1.1 times as fast as scalar at float16: batch 2, heads 16, kv-heads 16, seqlen 2048, headdim 64: the matrices are fast (600.0 TFLOP/s"},
		{20e12, 200, false, Slow, "the driver emulates matrices, whose products run at 20.00 TFLOP/s, multiply-adds at 50.00 TFLOP/s"},
		{0, 200, false, Slow, "the cause is not known"},
		{20e12, 200, true, Slow, "a CPU device has no matrix units"},
	} {
		paths := []*Path{
			{What: "forward", Impl: attention.CoopMat, DType: dtype.Float16, Verdict: Pass},
			{What: "forward", Impl: attention.Scalar, DType: dtype.Float16, Verdict: Pass}, {What: "forward", Impl: attention.Unfused, DType: dtype.Float16, Verdict: Pass},
		}
		r := &Report{Env: bench.Environment{CPU: c.cpu}, Ceilings: []bench.Ceiling{rate("matrix f16", c.matrix), rate("fma f32", 50e12)}, Paths: paths}
		r.compare(speedProblem(false, dtype.Float16), []bench.Result{result(attention.CoopMat, c.coopmat), result(attention.Scalar, 100), result(attention.Unfused, 400)})
		require.Equal(t, c.want, paths[0].Verdict)
		require.Contains(t, paths[0].Why, c.why)
		require.InDelta(t, 100/c.coopmat, paths[0].Speed, 1e-12)
		require.Equal(t, Pass, paths[2].Verdict, "the unfused path may be slow")
		require.InDelta(t, 0.25, paths[2].Speed, 1e-12)
		require.NoError(t, r.Err())

		bad := result(attention.CoopMat, 0) // it is wrong at that size only
		bad.Status, bad.Reason = bench.StatusFailed, "O[0] is 1"
		r.compare(speedProblem(false, dtype.Float16), []bench.Result{bad, result(attention.Scalar, 100)})
		require.ErrorContains(t, r.Err(), "1 of 3 paths must not be used, the first coopmat forward for float16: WRONG: ")
		require.Contains(t, paths[0].Why, "seq_q=2048")
	}
}

// TestSheet says that wrong matrices are named, and wants one line for all paths without time.
func TestSheet(t *testing.T) {
	r := Report{
		Env:      bench.Environment{Device: "GPU"},
		Ceilings: []bench.Ceiling{{Name: "matrix f16", Wrong: errors.New("element 3 is 1, want 2")}},
		Paths:    []*Path{{What: "forward", Impl: attention.CoopMat, DType: dtype.Float16, Verdict: Wrong, Why: "case\nx: off", Right: 3, Bad: 2, Left: 7, Worst: 0.5}},
		Took:     1234 * time.Millisecond,
	}
	for _, format := range formats {
		r.Paths = append(r.Paths, &Path{What: "backward", Impl: attention.CoopMat, DType: format, Left: 9})
		r.Paths[len(r.Paths)-1].conclude()
	}
	r.Paths = append(r.Paths, &Path{What: "backward", Impl: attention.Unfused})
	r.Paths[4].conclude()
	var b strings.Builder
	require.NoError(t, bench.WriteSheet(&b, r.Sheet(), bench.Table, true))
	want, err := os.ReadFile("testdata/sheet.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), b.String()+r.Summary()+"\n")
}
