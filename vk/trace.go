package vk

import "fmt"

// A Trace times the dispatches of a Cmd one by one: what Cmd.Trace gives. It
// belongs to the goroutine of the Cmd.
type Trace struct {
	timer *Timer
	most  int
	list  []TracedDispatch
}

// TracedDispatch is one dispatch of a Trace.
type TracedDispatch struct {
	Kernel    string
	Groups    [3]uint32 // workgroups
	Workgroup [3]uint32 // its size; 0 if it is not known
	Stats     KernelStats
}

// NewTrace returns a Trace for up to so many dispatches. The error wraps
// ErrUnsupported if the device's queue has no clock.
func (d *Device) NewTrace(dispatches int) (*Trace, error) {
	if dispatches <= 0 {
		return nil, fmt.Errorf("vk: trace of %d dispatches, at least 1 is needed", dispatches)
	}
	timer, err := d.NewTimer(2 * dispatches)
	if err != nil {
		return nil, err
	}
	return &Trace{timer: timer, most: dispatches}, nil
}

// Close frees the timestamps once the submissions so far have finished. It is
// idempotent and may be called on nil.
func (t *Trace) Close() {
	if t != nil {
		t.timer.Close()
	}
}

// Trace puts a timestamp before and after each dispatch that follows, until
// Reset. It forgets what t held. Dispatches with no barrier between them
// overlap, and so do their times.
func (c *Cmd) Trace(t *Trace) {
	if !c.recording() {
		return
	}
	t.list = t.list[:0]
	c.trace = t
}

// Dispatches returns what was recorded, in order.
func (t *Trace) Dispatches() []TracedDispatch { return t.list }

// Times returns when each dispatch began and ended in the last finished
// submission, in nanoseconds from the beginning of the first.
func (t *Trace) Times() (begin, end []float64, err error) {
	for i := range t.list {
		from, err := t.timer.Nanoseconds(0, 2*i)
		if err != nil {
			return nil, nil, err
		}
		to, err := t.timer.Nanoseconds(0, 2*i+1)
		if err != nil {
			return nil, nil, err
		}
		begin, end = append(begin, from), append(end, to)
	}
	return begin, end, nil
}

// before and after are called around each dispatch of k. Before returns false if
// there is no room for it.
func (t *Trace) before(c *Cmd, k *kernel) bool {
	if len(t.list) == t.most {
		c.fail("more than the %d dispatches of its trace", t.most)
		return false
	}
	c.Timestamp(t.timer, 2*len(t.list))
	t.list = append(t.list, TracedDispatch{k.name, c.args.groups, k.workgroup, k.stats})
	return true
}

func (t *Trace) after(c *Cmd) { c.Timestamp(t.timer, 2*len(t.list)-1) }
