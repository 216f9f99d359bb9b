package bench

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/flashvk/flashvk/vk"
)

// A Target is an implementation to time.
type Target struct {
	Name string
	// Record records one call into c, on that set of buffers.
	Record func(c *vk.Cmd, set int) error
	// Clear destroys the outputs in a set. Verify returns an error if they are not those that
	// were found right before. For each set, a last batch runs between Clear and Verify. Without
	// Verify there is no such batch.
	Clear  func(ctx context.Context, set int) error
	Verify func(ctx context.Context, set int) error
	// MaxBatch limits the calls of one batch; 0 is no limit.
	MaxBatch int
}

// A Protocol says how much to measure. The package documentation says how.
type Protocol struct {
	Samples    int           // samples of each target
	Warmup     int           // least calls of each target before the first sample
	WarmupTime time.Duration // least device time of all targets together before the first sample
	Iters      int           // calls of each target in all its samples together; 0: as SampleTime says
	SampleTime time.Duration // device time that a sample should last
	WallTime   time.Duration // wall-clock samples of a target stop after this time, but minWallSamples are taken; negative: none
	CacheBytes int64         // a problem smaller than this is rotated through several sets of buffers

	// Tick is called after the warm-up and after each round of samples, if it is not nil. It is
	// meant for Monitor.Tick.
	Tick func(context.Context) error
}

const (
	// minWallSamples are taken even of slow calls.
	minWallSamples = 3
	// MaxBatchCalls bounds the calls of one sample, and so the size of a
	// command buffer.
	MaxBatchCalls = 1000
	// maxSets bounds the number of sets of buffers.
	maxSets = 64
	// settled is how much two times of a device at its clock may differ, relatively.
	settled = 0.02
)

// DefaultProtocol returns the protocol for a GPU or a CPU device.
//
// A GPU's batch of 20 ms is long against the tick of its clock (1 µs at most)
// and the gaps of a submission, and short against the seconds after which an
// operating system resets a GPU that does not answer. 256 MiB exceed the
// last-level caches of today's GPUs (50 MB on H200, 128 MB at most).
func DefaultProtocol(cpu bool) Protocol {
	if cpu {
		return Protocol{
			Samples: 10, WarmupTime: 20 * time.Millisecond, SampleTime: 20 * time.Millisecond,
			WallTime: 200 * time.Millisecond, CacheBytes: 64 << 20,
		}
	}
	return Protocol{
		Samples: 10, WarmupTime: 400 * time.Millisecond, SampleTime: 20 * time.Millisecond,
		WallTime: time.Second, CacheBytes: 256 << 20,
	}
}

// sets returns how many sets of buffers of the given size to rotate through.
func (pr Protocol) sets(bytes float64) int {
	return int(min(max(float64(pr.CacheBytes)/bytes, 1), maxSets))
}

func (pr Protocol) tick(ctx context.Context) error {
	if pr.Tick == nil {
		return nil
	}
	if err := pr.Tick(ctx); err != nil {
		return fmt.Errorf("reference kernel: %w", err)
	}
	return nil
}

// batch returns how many calls make a sample, if one takes ns nanoseconds.
func (pr Protocol) batch(ns float64, limit int) int {
	n := float64(MaxBatchCalls)
	switch {
	case pr.Iters > 0:
		n = float64((pr.Iters + pr.Samples - 1) / pr.Samples)
	case ns > 0:
		n = float64(pr.SampleTime) / ns
	}
	if limit > 0 {
		n = min(n, float64(limit))
	}
	return int(min(max(n, 1), MaxBatchCalls))
}

// wallSamples returns how many wall-clock samples of a call that takes ns
// nanoseconds to take.
func (pr Protocol) wallSamples(ns float64) int {
	if pr.WallTime < 0 {
		return 0
	}
	n := float64(pr.Samples)
	if ns > 0 {
		n = float64(pr.WallTime) / ns
	}
	return int(min(max(n, minWallSamples), float64(pr.Samples)))
}

// A Measured has the samples of a target.
type Measured struct {
	Timing Timing
	Err    error // from Verify: what was timed was wrong
}

// Measure times targets that have all been checked once, on the given number of sets of buffers.
// It calls step MeasureSteps times, to show progress,
// if there are targets.
func Measure(ctx context.Context, d *vk.Device, targets []Target, sets int, pr Protocol, step func()) ([]Measured, error) {
	if len(targets) == 0 {
		return nil, nil
	}
	lanes := make([]*lane, len(targets))
	for i, t := range targets {
		l, err := newLane(d, t, sets)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		defer l.close()
		lanes[i] = l
	}
	if err := warmUp(ctx, lanes, pr); err != nil {
		return nil, err
	}
	step()
	for i := range pr.Samples {
		if err := pr.tick(ctx); err != nil {
			return nil, err
		}
		for j := range lanes {
			l := lanes[(i+j)%len(lanes)] // a new order each time
			if err := l.sample(ctx, i < pr.wallSamples(l.callNS)); err != nil {
				return nil, fmt.Errorf("%s: %w", l.Name, err)
			}
			step()
		}
	}
	if err := pr.tick(ctx); err != nil {
		return nil, err
	}
	result := make([]Measured, len(lanes))
	for i, l := range lanes {
		verdict, err := l.verify(ctx)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", l.Name, err)
		}
		result[i] = Measured{l.timing, verdict}
	}
	return result, nil
}

// MeasureSteps returns how often Measure calls step.
func MeasureSteps(targets int, pr Protocol) int { return 1 + targets*pr.Samples }

// A lane is a target with its recorded commands.
type lane struct {
	Target
	sets   int
	single timed   // one call
	batch  timed   // a sample
	fresh  *vk.Cmd // recorded again for each wall-clock sample
	callNS float64 // device time of a call, as far as is known
	steady bool    // the last two times agreed
	timing Timing
}

// A timed is a command buffer whose work stands between two timestamps.
type timed struct {
	cmd   *vk.Cmd
	timer *vk.Timer
	calls int
}

func newTimed(d *vk.Device, name string) (x timed, err error) {
	if x.cmd, err = d.NewCmd(name); err == nil {
		x.timer, err = d.NewTimer(2)
	}
	if err != nil {
		x.close()
	}
	return x, err
}

func (x *timed) close() {
	x.cmd.Close()
	x.timer.Close()
}

// record records n calls, on the sets in turn, between two timestamps into x. A barrier follows each
// call, so that calls do not overlap and the second timestamp waits for the last one.
func (x *timed) record(record func(c *vk.Cmd, set int) error, sets, n int) error {
	x.cmd.Reset()
	x.calls = n
	x.cmd.Timestamp(x.timer, 0)
	for i := range n {
		if err := record(x.cmd, i%sets); err != nil {
			return err
		}
		x.cmd.Barrier()
	}
	x.cmd.Timestamp(x.timer, 1)
	return x.cmd.Err()
}

// run runs x and returns the device time per call.
func (x *timed) run(ctx context.Context) (float64, error) {
	if err := x.cmd.Submit(ctx); err != nil {
		return 0, err
	}
	ns, err := x.timer.Nanoseconds(0, 1)
	return ns / float64(x.calls), err
}

func newLane(d *vk.Device, t Target, sets int) (_ *lane, err error) {
	l := &lane{Target: t, sets: sets}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	for _, x := range []*timed{&l.single, &l.batch} {
		if *x, err = newTimed(d, "bench "+t.Name); err != nil {
			return nil, err
		}
	}
	l.fresh, err = d.NewCmd("bench fresh " + t.Name)
	return l, err
}

func (l *lane) close() {
	l.single.close()
	l.batch.close()
	l.fresh.Close()
}

// warmUp runs batches of the lanes in turn until the protocol is satisfied and two batches of
// each lane in a row agree within settled, at most five times as long as the protocol says. It
// leaves each lane with the batch of its samples. An idle H200 was seen to need more than half a
// second of work to reach its clock.
//
// A first call says how large a batch is. The clock may be low then, and the batch too small, by
// 5 times perhaps. So it is sized again in the end. Single calls alone would not do: the device
// would wait for the host between them, and the clock would not rise.
func warmUp(ctx context.Context, lanes []*lane, pr Protocol) error {
	busy := 0.0
	for round := 0; ; round++ {
		enough := round > 1 && busy >= float64(pr.WarmupTime)
		late := busy >= 5*float64(pr.WarmupTime)
		for _, l := range lanes {
			enough = enough && l.timing.Warmup >= pr.Warmup && (late || l.steady)
		}
		if enough {
			break
		}
		for _, l := range lanes {
			x := &l.batch
			if round == 0 {
				x = &l.single
				if err := x.record(l.Record, l.sets, 1); err != nil {
					return fmt.Errorf("%s: %w", l.Name, err)
				}
			} else if err := l.sizeBatch(pr); err != nil {
				return fmt.Errorf("%s: %w", l.Name, err)
			}
			ns, err := x.run(ctx)
			if err != nil {
				return fmt.Errorf("%s: %w", l.Name, err)
			}
			l.steady = math.Abs(ns-l.callNS) <= settled*ns
			l.callNS = ns
			l.timing.Warmup += x.calls
			// A call counts as 100 ns at least, so that the loop ends on a device whose clock
			// stands still.
			busy += max(ns, 100) * float64(x.calls)
		}
	}
	for _, l := range lanes {
		if err := l.sizeBatch(pr); err != nil {
			return fmt.Errorf("%s: %w", l.Name, err)
		}
		l.timing.Iters = l.batch.calls
		l.timing.Sets = min(l.batch.calls, l.sets)
	}
	return nil
}

// sizeBatch records the batch anew, unless its length is about right.
func (l *lane) sizeBatch(pr Protocol) error {
	n, have := pr.batch(l.callNS, l.MaxBatch), l.batch.calls
	if have > 0 && 4*n <= 5*have && 4*have <= 5*n {
		return nil
	}
	return l.batch.record(l.Record, l.sets, n)
}

// sample takes a device sample and, if wall, one of each wall-clock sample.
func (l *lane) sample(ctx context.Context, wall bool) error {
	ns, err := l.batch.run(ctx)
	if err != nil {
		return err
	}
	l.timing.DeviceNS = append(l.timing.DeviceNS, ns)
	if !wall {
		return nil
	}
	start := time.Now()
	if err := l.single.cmd.Submit(ctx); err != nil {
		return err
	}
	l.timing.ReplayNS = append(l.timing.ReplayNS, float64(time.Since(start)))

	start = time.Now()
	l.fresh.Reset()
	if err := l.Record(l.fresh, 0); err != nil {
		return err
	}
	if err := l.fresh.Submit(ctx); err != nil {
		return err
	}
	l.timing.FreshNS = append(l.timing.FreshNS, float64(time.Since(start)))
	return nil
}

// verify runs the batch once more and checks its outputs. The verdict is the first error of a
// check.
func (l *lane) verify(ctx context.Context) (verdict, err error) {
	if l.Verify == nil {
		return nil, nil
	}
	for set := range l.timing.Sets {
		if err := l.Clear(ctx, set); err != nil {
			return nil, err
		}
	}
	if err := l.batch.cmd.Submit(ctx); err != nil {
		return nil, err
	}
	for set := range l.timing.Sets {
		if err := l.Verify(ctx, set); err != nil {
			if ctx.Err() != nil {
				return nil, err
			}
			return err, nil
		}
	}
	return nil, nil
}

func tensorBytes(t vk.Tensor) int64 { return int64(t.NumElements()) * int64(t.DType.Size()) }
