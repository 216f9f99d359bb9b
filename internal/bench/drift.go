package bench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/flashvk/flashvk/vk"
)

// A Monitor times a reference kernel again and again during a run. The kernel is multiply-adds in
// registers, whose time depends on the device's clock alone. A Monitor belongs to one goroutine.
type Monitor struct {
	loop  *loop
	timed timed
	ns    []float64
	first time.Time
	last  time.Time
}

// tickTime is how long a call of the reference kernel should take at the clock of the first tick.
const tickTime = time.Millisecond

// NewMonitor returns a Monitor. The error wraps vk.ErrUnsupported if the device
// cannot run the reference kernel.
func NewMonitor(d *vk.Device) (*Monitor, error) {
	loop, err := newLoop(d, fmaLoop)
	if err != nil {
		return nil, err
	}
	m := &Monitor{loop: loop}
	if m.timed, err = newTimed(d, "monitor"); err != nil {
		loop.close()
		return nil, err
	}
	return m, nil
}

// Close frees the resources of m. It may be called on nil.
func (m *Monitor) Close() {
	if m != nil {
		m.loop.close()
		m.timed.close()
	}
}

// Tick times the reference kernel. The device should be at its clock, as between two samples:
// Protocol.Tick is the place.
func (m *Monitor) Tick(ctx context.Context) error {
	if len(m.ns) == 0 {
		if err := m.loop.calibrate(ctx, tickTime); err != nil {
			return err
		}
		if err := m.timed.record(m.loop.record, 1, 1); err != nil {
			return err
		}
		m.first = time.Now()
	}
	ns, err := m.timed.run(ctx)
	if err != nil {
		return err
	}
	m.ns, m.last = append(m.ns, ns), time.Now()
	return nil
}

// A Drift says how the time of the reference kernel changed over a run.
type Drift struct {
	Ticks  int
	Change float64 // median of the last quarter over the median of the first, less 1
	Range  float64 // slowest by fastest, less 1
	Over   time.Duration
}

// Drift returns the drift so far. Ticks is 0 if there are too few.
func (m *Monitor) Drift() Drift {
	if m == nil || len(m.ns) < minTicks {
		return Drift{}
	}
	quarter := len(m.ns) / 4
	start, end := Summarize(m.ns[:quarter]).Median, Summarize(m.ns[len(m.ns)-quarter:]).Median
	least, most := slices.Min(m.ns), slices.Max(m.ns)
	if start == 0 || least == 0 { // the device's clock stands still
		return Drift{}
	}
	return Drift{len(m.ns), end/start - 1, most/least - 1, m.last.Sub(m.first)}
}

const (
	// minTicks give each quarter two ticks.
	minTicks = 8
	// maxDrift is the change from which on a reader is warned: three times the change of an idle
	// H200 between two runs.
	maxDrift = 0.03
)

// String returns the drift in words, "" if nothing is known.
func (d Drift) String() string {
	if d.Ticks == 0 {
		return ""
	}
	how := "more"
	if d.Change < 0 {
		how = "less"
	}
	return fmt.Sprintf("a reference kernel took %.1f%% %s time at the end than at the start, %v before; its slowest time is %.1f%% above its fastest",
		100*max(d.Change, -d.Change), how, d.Over.Round(time.Second/10), 100*d.Range)
}

// Large reports whether times of the start and of the end are not comparable.
func (d Drift) Large() bool { return d.Change > maxDrift || d.Change < -maxDrift }

// key returns the change for a file key, "" if nothing is known.
func (d Drift) key() string {
	if d.Ticks == 0 {
		return ""
	}
	return fmt.Sprintf("%+.4f", d.Change)
}
