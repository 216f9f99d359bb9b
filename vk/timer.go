package vk

import (
	"fmt"
	"unsafe"

	vulkan "github.com/vulkan-go/vulkan"
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
	if c.enter() {
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

// ticks reads timestamp i.
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
