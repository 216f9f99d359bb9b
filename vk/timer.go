package vk

import (
	"fmt"
	"unsafe"

	vulkan "github.com/vulkan-go/vulkan"

	"github.com/flashvk/flashvk/dtype"
)

// Timer holds timestamps of the device's clock. It belongs to one goroutine
// and to one Cmd at a time.
type Timer struct {
	object
	pool   vulkan.QueryPool
	n      int
	serial uint64 // last submission that records it, 0 for none
}

// maxTimestamps is the most of one Timer. Vulkan knows no limit, drivers do: lavapipe makes 1<<31
// and crashes.
const maxTimestamps = 1 << 20

// NewTimer returns a Timer with timestamps 0 to n-1, 1<<20 at most. The error wraps
// ErrUnsupported if the device's queue has no clock.
func (d *Device) NewTimer(n int) (*Timer, error) {
	if !d.enter() {
		return nil, withPrefix(d.errClosed())
	}
	defer d.leave()
	if n <= 0 || n > maxTimestamps {
		return nil, fmt.Errorf("vk: timer with %d timestamps, it may have 1 to %d", n, maxTimestamps)
	}
	if d.caps.TimestampBits == 0 {
		return nil, fmt.Errorf("vk: timestamps: %w", ErrUnsupported)
	}
	info := vulkan.QueryPoolCreateInfo{SType: vulkan.StructureTypeQueryPoolCreateInfo, QueryType: vulkan.QueryTypeTimestamp, QueryCount: uint32(n)}
	defer info.Free()
	var pool vulkan.QueryPool
	if r := vulkan.CreateQueryPool(d.handle, &info, nil, &pool); r < 0 {
		return nil, callError("vkCreateQueryPool", int32(r))
	}
	t := &Timer{pool: pool, n: n}
	t.register(d, "timer", fmt.Sprintf("of %d", n), func() { vulkan.DestroyQueryPool(d.handle, pool, nil) })
	return t, nil
}

// Close destroys t once the submissions so far have finished. It is
// idempotent and may be called on nil.
func (t *Timer) Close() {
	if t != nil {
		t.object.close()
		t.pool = nil
	}
}

// Timestamp records timestamp i of t: the time when everything recorded before it is done. The
// first timestamp of t in a recording clears all of t, so all of them must be in one Cmd.
func (c *Cmd) Timestamp(t *Timer, i int) {
	if c.begin() {
		defer c.leave()
		c.settle()
		c.timestamp(t, i)
	}
}

func (c *Cmd) timestamp(t *Timer, i int) {
	if !c.recording() {
		return
	}
	switch {
	case t == nil || t.isClosed():
		c.fail("Timestamp: the timer is closed")
		return
	case t.d != c.d:
		c.fail("Timestamp: the timer is of another device")
		return
	case i < 0 || i >= t.n:
		c.fail("Timestamp: index %d is not in 0..%d", i, t.n-1)
		return
	}
	first := true
	for _, seen := range c.timers {
		first = first && seen != t
	}
	if first {
		c.timers = append(c.timers, t)
		if c.use(&t.object); c.err != nil {
			return
		}
		if !c.arena.dry {
			c.d.api.resetQueries(c.rec.cmd, t.pool, t.n)
		}
	}
	if c.arena.dry {
		return
	}
	c.d.api.timestamp(c.rec.cmd, t.pool, i)
}

// Nanoseconds returns the device time from timestamp i to timestamp j of the last finished
// submission.
func (t *Timer) Nanoseconds(i, j int) (float64, error) {
	from, err := t.ticks(i)
	if err != nil {
		return 0, err
	}
	to, err := t.ticks(j)
	if err != nil {
		return 0, err
	}
	return elapsedNanoseconds(from, to, t.d.caps.TimestampBits, t.d.caps.TimestampPeriod), nil
}

// elapsedNanoseconds converts ticks of a counter that has the given number of
// bits and may have wrapped around once.
func elapsedNanoseconds(from, to uint64, bits uint32, period float64) float64 {
	mask := ^uint64(0) >> (64 - bits)
	return float64((to-from)&mask) * period
}

func (t *Timer) ticks(i int) (uint64, error) {
	if t == nil || t.isClosed() {
		return 0, fmt.Errorf("vk: the timer is closed")
	}
	if i < 0 || i >= t.n {
		return 0, fmt.Errorf("vk: timestamp %d is not in 0..%d", i, t.n-1)
	}
	// Before the first submission has cleared it, the pool holds nothing that
	// may be read.
	if t.serial == 0 || !t.d.finished(t.serial) {
		return 0, fmt.Errorf("vk: timestamp %d was not recorded, or its submission has not finished", i)
	}
	if !t.d.enter() {
		return 0, withPrefix(t.d.errClosed())
	}
	defer t.d.leave()
	const bits64WithAvailability = 1 | 4
	var value [2]uint64 // ticks, available
	r := vulkan.GetQueryPoolResults(t.d.handle, t.pool, uint32(i), 1, uint(unsafe.Sizeof(value)), unsafe.Pointer(&value[0]),
		vulkan.DeviceSize(unsafe.Sizeof(value)), bits64WithAvailability)
	if r < 0 {
		return 0, callError("vkGetQueryPoolResults", int32(r))
	}
	if value[1] == 0 {
		return 0, fmt.Errorf("vk: timestamp %d was not recorded", i)
	}
	return value[0], nil
}

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
	// Matrices says that the device's matrices do the operations. DType is then the format of
	// the operands.
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
	if !c.begin() {
		return
	}
	defer c.leave()
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

// barrier is called for each barrier. The commands behind the barrier wait for the last dispatch if
// the barrier is for that dispatch, or for a command that waits for the dispatch.
func (t *Trace) barrier(from, to scope) {
	if from.stages&(computeScope().stages|t.waits) != 0 {
		t.waits |= to.stages
	}
}

func (t *Trace) after(c *Cmd) { c.timestamp(t.timer, 2*len(t.list)-1) }
