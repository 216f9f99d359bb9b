package selftest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/attention/attntest"
	"github.com/flashvk/flashvk/internal/attention/ref"
	"github.com/flashvk/flashvk/internal/bench"
	"github.com/flashvk/flashvk/internal/bench/trial"
	"github.com/flashvk/flashvk/internal/guard"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
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
	r := &run{Options: o, start: time.Now(), report: &Report{Env: env}, most: 24, workers: 4, progress: func(done, total int, what string) {
		require.LessOrEqual(t, done, total)
		require.NotEmpty(t, what)
	}}
	require.NoError(t, r.run(context.Background()))
	report := r.report
	require.Empty(t, report.Failed())
	require.Len(t, report.Paths, 15)
	for _, p := range report.Paths {
		require.Contains(t, []Verdict{Pass, Unsupported}, p.Verdict, p.Why)
	}
	float32s := report.Paths[2]
	require.Equal(t, Pass, float32s.Verdict)
	gradients := report.Paths[5]
	require.Equal(t, bench.Backward, gradients.Pass)
	require.Equal(t, Pass, gradients.Verdict, gradients.Why)
	require.Greater(t, gradients.Right, 3)
	for i, kernel := range []string{"decode", "step", "append"} {
		p := report.Paths[8+3*i]
		require.Equal(t, kernel, p.What())
		require.Equal(t, Pass, p.Verdict, p.Why)
		require.Greater(t, p.Right, 3)
	}
	require.Greater(t, gradients.Worst, 0.0)
	require.LessOrEqual(t, gradients.Worst, 1.0)
	require.Greater(t, float32s.Right, 5)
	require.Greater(t, float32s.Worst, 0.0)
	require.LessOrEqual(t, float32s.Worst, 1.0)
	require.Len(t, report.Ceilings, 4)
	for _, want := range []string{"attention_fwd_scalar.f32", "attention_bwd_dq_scalar.f32", "attention_decode.f32", "attention_decode_append.f32", "attention_append.f32", "attention_advance", "micro_copy"} {
		i := slices.IndexFunc(report.Modules, func(m trial.Module) bool { return m.Name == want })
		require.GreaterOrEqual(t, i, 0, "%s did not run", want)
		require.Positive(t, report.Modules[i].Problems[Suite])
		require.Zero(t, report.Modules[i].Failed)
	}
	require.True(t, slices.IsSortedFunc(report.Modules, func(a, b trial.Module) int { return strings.Compare(a.Name, b.Name) }))
	var text strings.Builder
	require.NoError(t, bench.WriteSheet(&text, report.Sheet(), bench.Table, true))
	require.Regexp(t, `\nscalar +forward +float32 +pass +\d+ +0 `, text.String())
	require.Regexp(t, `\nscalar +decode +float32 +pass +\d+ +0 `, text.String())

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
	require.Empty(t, report.Failed())
}

// wrongScale is right only for problems of one key, where the scale has no effect.
var wrongScale = attntest.Contiguous(func(o, lse []float64, in ref.Inputs[float64], p attention.Problem) error {
	if p.SeqKV > 1 {
		p.Scale = 1
	}
	return ref.Forward(o, lse, in, p)
})

// failing returns err from the nth call on, of one format.
func failing(n int, format dtype.DType, err error) attntest.Forwarder {
	var mu sync.Mutex
	return attntest.ForwardFunc(func(o, lse *guard.View, in attntest.Inputs, p attention.Problem) error {
		if p.DType == format {
			mu.Lock()
			n--
			broken := n < 0
			mu.Unlock()
			if broken {
				return err
			}
		}
		return attntest.Reference.Forward(o, lse, in, p)
	})
}

// TestVerdicts gives the test kernels that are broken in one way each.
func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		name      string
		forwarder func() attntest.Forwarder
		want      Verdict
		why       string
		opens     int
	}{
		{"right", func() attntest.Forwarder { return attntest.Reference }, Pass, "", 1},
		{"wrong", func() attntest.Forwarder { return wrongScale }, Wrong, "/float32: O[", 1},
		{"hung", func() attntest.Forwarder {
			return failing(4, dtype.Float32, fmt.Errorf("vk: still running: %w", context.DeadlineExceeded))
		}, Hung, "a call did not come back within 1h0m0s", 1},
		{"lost", func() attntest.Forwarder { return failing(4, dtype.Float32, vk.ErrDeviceLost) }, Lost, "VK_ERROR_DEVICE_LOST", 2},
		{"broken", func() attntest.Forwarder { return failing(4, dtype.Float32, errors.New("the compiler gave up")) }, Wrong, "the compiler gave up", 1},
		{"refuses all", func() attntest.Forwarder { return failing(0, dtype.Float32, vk.ErrUnsupported) }, NotRun, "the test ended before", 1},
	} {
		for _, workers := range []int{1, 8} {
			t.Run(fmt.Sprintf("%s/%d", c.name, workers), func(t *testing.T) {
				if workers == 1 {
					vktest.Sequential(t)
				}
				env, o := options(t, time.Hour, attention.Scalar)
				opens, open := 0, o.Open
				o.Open = func() (*vk.Device, error) { opens++; return open() }
				r := &run{Options: o, start: time.Now(), report: &Report{Env: env}, most: 30, workers: workers}
				forwarder := c.forwarder()
				r.forwarder = func(attention.Impl) attntest.Forwarder { return forwarder }
				var err error
				r.d, err = r.Open()
				require.NoError(t, err)
				require.NoError(t, r.cases(context.Background()))
				require.NoError(t, r.d.Close())
				require.Equal(t, c.opens, opens)
				p := r.report.Paths[2]
				require.Equal(t, dtype.Float32, p.DType)
				require.Equal(t, c.want, p.Verdict, p.Why)
				require.Contains(t, p.Why, c.why)
				if c.want == Hung || c.want == Lost {
					require.Equal(t, 1, p.Bad, "a path was used again after it hung")
					if workers == 1 {
						require.Equal(t, 2, p.Right)
					}
				}
				if c.want == Wrong {
					require.Greater(t, p.Bad, 1)
				}
				require.Equal(t, c.want.Bad(), len(r.report.Failed()) > 0)
				if other := r.report.Paths[0]; c.name != "wrong" && other.Verdict != Unsupported {
					require.Equal(t, Pass, other.Verdict, "another format: %s", other.Why)
				}
			})
		}
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
		r := &run{report: &Report{
			Env:      bench.Environment{CPU: c.cpu},
			Ceilings: []bench.Ceiling{rate("matrix f16", c.matrix), rate("fma f32", 50e12)},
			Paths: []Path{
				{Kernel: attentionKernel, Impl: attention.CoopMat, DType: dtype.Float16, Verdict: Pass},
				{Kernel: attentionKernel, Impl: attention.Scalar, DType: dtype.Float16, Verdict: Pass}, {Kernel: attentionKernel, Impl: attention.Unfused, DType: dtype.Float16, Verdict: Pass},
			},
		}}
		r.compare(speedProblem(false, dtype.Float16), []bench.Result{result(attention.CoopMat, c.coopmat), result(attention.Scalar, 100), result(attention.Unfused, 400)})
		p := r.report.Paths
		require.Equal(t, c.want, p[0].Verdict)
		require.Contains(t, p[0].Why, c.why)
		require.InDelta(t, 100/c.coopmat, p[0].Speed, 1e-12)
		require.Equal(t, Pass, p[2].Verdict, "the unfused path may be slow")
		require.InDelta(t, 0.25, p[2].Speed, 1e-12)
		require.False(t, c.want.Bad())
	}
	// A path that is wrong at that size only.
	r := &run{report: &Report{Paths: []Path{{Kernel: attentionKernel, Impl: attention.CoopMat, DType: dtype.Float16, Verdict: Pass}, {Kernel: attentionKernel, Impl: attention.Scalar, DType: dtype.Float16, Verdict: Pass}}}}
	bad := result(attention.CoopMat, 0)
	bad.Status, bad.Reason = bench.StatusFailed, "O[0] is 1"
	r.compare(speedProblem(false, dtype.Float16), []bench.Result{bad, result(attention.Scalar, 100)})
	require.Equal(t, Wrong, r.report.Paths[0].Verdict)
	require.Contains(t, r.report.Paths[0].Why, "seq_q=2048")
}

// TestSheetLeft wants one line for all paths without time, however many they are.
func TestSheetLeft(t *testing.T) {
	var r Report
	for _, format := range formats {
		r.Paths = append(r.Paths, Path{Kernel: attentionKernel, Impl: attention.CoopMat, DType: format, Verdict: NotRun, Why: "there was no time for any of 9 cases", Left: 9})
	}
	r.Paths = append(r.Paths, Path{Kernel: attentionKernel, Impl: attention.Scalar, Verdict: Pass, Right: 3, Left: 2}, Path{Kernel: attentionKernel, Impl: attention.Unfused, Verdict: NotRun, Why: "the test ended before"})
	var text strings.Builder
	require.NoError(t, bench.WriteSheet(&text, r.Sheet(), bench.Table, true))
	require.Equal(t, 1, strings.Count(text.String(), "there was no time for "), text.String()[strings.Index(text.String(), "path "):])
	require.Contains(t, text.String(), "there was no time for 29 cases, all those of 3 paths among them: a larger --budget runs them\n")
	require.Contains(t, text.String(), "the test ended before\n")
}

// TestSheet says that wrong matrices are named.
func TestSheet(t *testing.T) {
	r := Report{
		Env:      bench.Environment{Device: "GPU"},
		Ceilings: []bench.Ceiling{{Name: "matrix f16", Wrong: errors.New("element 3 is 1, want 2")}},
		Paths:    []Path{{Kernel: attentionKernel, Impl: attention.CoopMat, DType: dtype.Float16, Verdict: Wrong, Why: "case\nx: off", Right: 3, Bad: 2, Left: 7, Worst: 0.5}},
		Took:     1234 * time.Millisecond,
	}
	var text strings.Builder
	require.NoError(t, bench.WriteSheet(&text, r.Sheet(), bench.Table, true))
	for _, want := range []string{
		"matrix f16 is WRONG and was not timed: element 3 is 1, want 2\n", "coopmat  forward  float16  WRONG        3      2        0     7   0.50      -\n",
		"coopmat forward, float16: WRONG: case x: off\n", `the device multiplies wrongly: see the loop "matrix f16" above`, "there was no time for 7 cases: a larger --budget runs them\n", "took 1.2s\n",
	} {
		require.Contains(t, text.String(), want)
	}
}
