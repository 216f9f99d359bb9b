package vk

import (
	"fmt"

	"github.com/flashvk/flashvk/dtype"
)

// A Trace times the dispatches of a Cmd one by one (Cmd.Trace). It belongs to the goroutine of the
// Cmd.
type Trace struct {
	timer *Timer
	most  int
	list  []TracedDispatch
	note  Note   // of the next dispatch
	waits uint32 // stages that wait for the last dispatch
}

// TracedDispatch is one dispatch of a Trace.
type TracedDispatch struct {
	Kernel    string
	Groups    [3]uint32 // workgroups
	Workgroup [3]uint32 // its size; 0 if it is not known
	Stats     KernelStats
	Note      Note // what Cmd.Note said of it
	// Beside says that there is no barrier between it and the dispatch before: it may have begun
	// before that one ended.
	Beside bool
}

// A Note describes a dispatch for readers of a Trace.
type Note struct {
	Text         string  // in words, such as the sizes of a product
	FLOPs, Bytes float64 // operations, and the least traffic; 0: none, or not known
	// Matrices says that the operations are those of the device's matrices; DType is then the
	// format of the operands.
	Matrices bool
	DType    dtype.DType
}

// NewTrace returns a Trace for up to this many dispatches. The error wraps ErrUnsupported if the
// device's queue has no clock.
func (d *Device) NewTrace(dispatches int) (*Trace, error) {
	if dispatches <= 0 || dispatches > maxTimestamps/2 {
		return nil, fmt.Errorf("vk: trace of %d dispatches, it may have 1 to %d", dispatches, maxTimestamps/2)
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

// Trace puts a timestamp before and after each dispatch that follows, until Reset. It forgets what
// t held. Dispatches without a barrier between them may run side by side, but a timestamp waits for
// all earlier commands: the time of the second dispatch begins when the first has ended.
func (c *Cmd) Trace(t *Trace) {
	if !c.enter() {
		return
	}
	defer c.leave()
	if !c.recording() {
		return
	}
	if t == nil {
		c.fail("Trace: there is none")
		return
	}
	c.settle()
	t.list, t.note, t.waits = t.list[:0], Note{}, computeScope().stages
	c.trace = t
}

// Traffic returns the bytes of the elements of tensors: the least traffic of a kernel that reads or
// writes each of them once. The zero Tensor has none. An axis of stride 0 counts once.
func Traffic(tensors ...Tensor) float64 {
	sum := 0.0
	for _, t := range tensors {
		if t.IsZero() {
			continue
		}
		bytes := float64(t.DType.Size())
		for i, n := range t.Shape {
			if t.Strides[i] != 0 {
				bytes *= float64(n)
			}
		}
		sum += bytes
	}
	return sum
}

// Note makes f describe the next dispatch, if there is a Trace.
func (c *Cmd) Note(f func() Note) {
	if c.trace != nil && c.err == nil {
		c.trace.note = f()
	}
}

// Dispatches returns the recorded dispatches in order.
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
	c.timestamp(t.timer, 2*len(t.list))
	t.list = append(t.list, TracedDispatch{k.name, c.args.groups, k.workgroup, k.stats, t.note, t.waits&computeScope().stages == 0})
	t.note, t.waits = Note{}, 0
	return true
}

// barrier is called for each barrier: what it holds back waits for the last dispatch if that,
// or something that waits for it, is what it is held back for.
func (t *Trace) barrier(from, to scope) {
	if from.stages&(computeScope().stages|t.waits) != 0 {
		t.waits |= to.stages
	}
}

func (t *Trace) after(c *Cmd) { c.timestamp(t.timer, 2*len(t.list)-1) }
