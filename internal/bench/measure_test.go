package bench

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashvk/flashvk/attention"
	"github.com/flashvk/flashvk/dtype"
	"github.com/flashvk/flashvk/internal/vk/vktest"
	"github.com/flashvk/flashvk/vk"
)

func TestProtocol(t *testing.T) {
	pr := Protocol{Samples: 10, SampleTime: 20 * time.Millisecond, WallTime: time.Second, CacheBytes: 256 << 20}
	counted := pr
	counted.Iters = 101
	for name, c := range map[string][2]int{
		"1 ms calls":                   {pr.batch(1e6, 0), 20},
		"1 s calls":                    {pr.batch(1e9, 0), 1},
		"1 µs calls":                   {pr.batch(1e3, 0), MaxBatchCalls},
		"a clock that stands still":    {pr.batch(0, 0), MaxBatchCalls},
		"limited":                      {pr.batch(1e6, 7), 7},
		"101 calls in 10 samples":      {counted.batch(1e9, 0), 11},
		"wall samples of 10 µs calls":  {pr.wallSamples(1e4), 10},
		"wall samples of 200 ms calls": {pr.wallSamples(2e8), 5},
		"wall samples of 10 s calls":   {pr.wallSamples(1e10), minWallSamples},
		"wall samples of 3 samples":    {Protocol{Samples: 2}.wallSamples(1e10), 2},
		"sets of 100 MB":               {pr.sets(100e6), 2},
		"sets of 1 GB":                 {pr.sets(1e9), 1},
		"sets of 1 kB":                 {pr.sets(1e3), maxSets},
	} {
		require.Equal(t, c[1], c[0], name)
	}
}

// quick is a protocol for tests.
func quick() Protocol {
	return Protocol{Samples: 3, Warmup: 2, WarmupTime: time.Millisecond, SampleTime: time.Millisecond, WallTime: time.Millisecond, CacheBytes: 1 << 20}
}

// TestMeasure: samples are means of calls, outputs of each set are cleared and verified, and the
// warm-up lasts as long as both of its rules say.
func TestMeasure(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	const bytes = 1 << 20
	var buffers []*vk.Buffer
	for range 2 {
		b, err := d.NewBuffer("fill", bytes)
		require.NoError(t, err)
		defer b.Close()
		buffers = append(buffers, b)
	}
	cleared := map[int]bool{}
	var verified []int
	fill := Target{
		Name: "fill",
		Record: func(c *vk.Cmd, set int) error {
			c.Fill(buffers[set], 0, bytes, 7)
			return c.Err()
		},
		Clear: func(_ context.Context, set int) error { cleared[set] = true; return nil },
		Verify: func(_ context.Context, set int) error {
			require.True(t, cleared[set], "set %d was not cleared", set)
			verified = append(verified, set)
			return nil
		},
	}
	wrong, limited := fill, fill
	wrong.Verify = func(context.Context, int) error { return errors.New("not what it was") }
	limited.MaxBatch = 1
	pr := quick()
	pr.Iters = 3 * 200
	steps := 0
	start := time.Now()
	got, err := Measure(context.Background(), d, []Target{fill, wrong, limited}, 2, pr, func() { steps++ })
	require.NoError(t, err)
	elapsed := float64(time.Since(start))
	require.Equal(t, MeasureSteps(3, pr), steps)
	for i, want := range [][]int{{200, 2, 3}, {200, 2, 3}, {1, 1, 3}} { // calls, sets, samples
		tm := got[i].Timing
		require.Equal(t, want, []int{tm.Iters, tm.Sets, len(tm.DeviceNS)})
		require.GreaterOrEqual(t, len(tm.FreshNS), minWallSamples)
		require.Len(t, tm.ReplayNS, len(tm.FreshNS))
		total := 0.0
		for _, ns := range tm.DeviceNS {
			total += ns * float64(tm.Iters)
		}
		require.LessOrEqual(t, total, elapsed, "a sample is the mean of its calls, not their sum")
		for _, ns := range slices.Concat(tm.DeviceNS, tm.ReplayNS, tm.FreshNS) {
			require.True(t, ns > 0 && ns <= elapsed, ns)
		}
		require.Equal(t, i == 1, got[i].Err != nil)
	}
	require.Equal(t, []int{0, 1, 0}, verified, "two sets of fill, one of limited")

	for _, pr := range []Protocol{{Samples: 1, Iters: 1, Warmup: 50, WarmupTime: 50 * time.Millisecond}, {Samples: 1, Iters: 1, Warmup: 50}} {
		start = time.Now()
		got, err = Measure(context.Background(), d, []Target{fill}, 1, pr, func() {})
		require.NoError(t, err)
		require.GreaterOrEqual(t, time.Since(start), pr.WarmupTime)
		require.GreaterOrEqual(t, got[0].Timing.Warmup, pr.Warmup)
	}
	require.Equal(t, 50, got[0].Timing.Warmup)

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = Measure(ctx, d, []Target{fill}, 1, pr, func() {})
	require.ErrorIs(t, err, context.Canceled)
	bad := Target{Name: "bad", Record: func(*vk.Cmd, int) error { return errors.New("cannot be recorded") }}
	_, err = Measure(context.Background(), d, []Target{bad}, 1, quick(), func() {})
	require.EqualError(t, err, "bad: cannot be recorded")
}

func smallProblem() attention.Problem {
	return attention.Problem{Batch: 2, NumHeads: 2, NumKVHeads: 1, SeqQ: 33, SeqKV: 50, HeadDim: 16, DType: dtype.Float16, Causal: true}
}

// NewAttention is kernels.Attention, which attention_test.go sets.
var NewAttention func(p attention.Problem) (Op, error)

// opOf returns the Op of a problem of attention.
func opOf(t *testing.T, p attention.Problem) Op {
	t.Helper()
	op, err := NewAttention(p)
	if err != nil {
		t.Fatal(err)
	}
	return op
}

// TestNormal: numbers are values of the format with the moments of the distribution, other ones for
// each chunk and seed, and the same ones on any number of processors.
func TestNormal(t *testing.T) {
	const n = 3*normalChunk + 17
	for _, dt := range dtype.All() {
		x := Normal(dt, n, 1)
		var sum, squares float64
		for _, v := range x {
			if dt.Round(v) != v {
				t.Fatalf("%v: %v is not a value of the format", dt, v)
			}
			sum, squares = sum+float64(v), squares+float64(v)*float64(v)
		}
		require.InDelta(t, 0, sum/n, 5/math.Sqrt(n), "five standard errors")
		// Rounding to 8 bits adds a variance of about 2^-16/3 * 2.
		require.InDelta(t, 1, squares/n, 5*math.Sqrt(2.0/n)+1e-4)
		require.False(t, slices.Equal(x[:normalChunk], x[normalChunk:2*normalChunk]))
		require.False(t, slices.Equal(x, Normal(dt, n, 2)))
		procs := runtime.GOMAXPROCS(1)
		again := Normal(dt, n, 1)
		runtime.GOMAXPROCS(procs)
		require.True(t, slices.Equal(x, again))
	}
}

func TestDrift(t *testing.T) {
	var m *Monitor
	require.Empty(t, m.Drift().String())
	m = &Monitor{ns: []float64{100, 102, 101, 99, 104, 105, 103}}
	require.Zero(t, m.Drift().Ticks, "seven ticks say nothing")
	require.Zero(t, (&Monitor{ns: make([]float64, 20)}).Drift().Ticks, "a clock that stands still")
	m.first = time.Now()
	m.last = m.first.Add(12340 * time.Millisecond)
	m.ns = append(m.ns, 107)
	r := sampleReport()
	r.Wide = true
	r.Drift = m.Drift() // 101 to 105, 99 to 107
	require.Contains(t, written(t, r, Table), "\nWARNING  a reference kernel took 4.0% more time at the end than at the start, 12.3s before; its slowest time is 8.1% above its fastest\n")
	require.Contains(t, written(t, r, Benchfmt), "\ndrift: +0.0396\n")
	require.Contains(t, written(t, r, JSON), `"change": 0.0396`)
	r.Drift.Change = -0.02
	require.Contains(t, written(t, r, Table), "\ndrift    a reference kernel took 2.0% less time")
	r.Drift.Change = -0.04
	require.True(t, r.Drift.Large())
	r.Env.CPU = true // whose times mean nothing anyway
	require.Contains(t, written(t, r, Table), "\ndrift    a reference kernel took 4.0% less time")
}

// TestMonitor says that a measurement calls the reference kernel between its
// rounds, and fails if that does.
func TestMonitor(t *testing.T) {
	vktest.Sequential(t)
	d := vktest.Open(t)
	ctx := context.Background()
	m, err := NewMonitor(d)
	require.NoError(t, err)
	defer m.Close()
	pr := quick()
	pr.Samples, pr.Tick = 8, m.Tick
	c := Case{Op: opOf(t, smallProblem()), Impls: []string{"scalar"}, Protocol: pr}
	_, err = Run(ctx, d, c, nil)
	require.NoError(t, err)
	require.Equal(t, 9, m.Drift().Ticks)
	require.Positive(t, m.Drift().Over)
	for _, ns := range m.ns {
		require.Positive(t, ns)
		if d.Caps().Type != vk.CPU {
			require.InDelta(t, float64(tickTime), ns, float64(tickTime))
		}
	}
	c.Protocol.Tick = func(context.Context) error { return errors.New("no time") }
	_, err = Run(ctx, d, c, nil)
	require.EqualError(t, err, "reference kernel: no time")
}
