package vk

import (
	"cmp"
	"slices"
)

// reordering is the part of a recording that Reorder began: its commands wait here for their place.
type reordering struct {
	list []deferred
}

// deferred is a command of a part that is reordered.
type deferred struct {
	level   int // commands of one level need nothing of each other
	touches []touch
	record  func()
}

// mostDeferred is after how many commands a part is reordered by itself: each is compared with
// those before it.
const mostDeferred = 2048

// Reorder begins a part of a recording; the function that it returns ends it. Each command of the
// part moves forward to the first barrier after all commands that it depends on. Independent
// commands then run side by side, wherever they were recorded, with fewer barriers between them:
//
//	recorded   a = f(x)  |  b = g(a)  |  c = h(b)     d = f(y)  |  e = g(d)
//	reordered  a = f(x)     d = f(y)  |  b = g(a)     e = g(d)  |  c = h(b)
//
// The results are the same, bit for bit. A command that writes memory that another has read depends
// on it too, so memory that is reused soon leaves less to move.
//
// No command moves past Barrier, BarrierToTransfer, BarrierFromTransfer, Timestamp or Trace. A part
// inside another changes nothing. Between a Reorder and its end, Barriers counts the barriers
// before the part.
func (c *Cmd) Reorder() (end func()) {
	if !c.enter() {
		return func() {}
	}
	defer c.leave()
	if c.later != nil || !c.recording() {
		return func() {}
	}
	part := &reordering{}
	c.later = part
	return func() {
		if !c.enter() {
			return
		}
		defer c.leave()
		if c.later == part { // not after Reset
			c.settle()
			c.later = nil
		}
	}
}

// put records a command, whose bytes the tracker knows, now or when its part is reordered. In
// both cases record is called after the barrier that it needs.
func (c *Cmd) put(s stage, record func()) {
	if c.later == nil {
		c.order(s)
		record()
		return
	}
	if len(c.later.list) == mostDeferred {
		touches := c.tracker.touches
		c.tracker.touches = nil
		c.settle()
		c.tracker.touches = touches
	}
	c.later.add(slices.Clone(c.tracker.touches), func() { c.order(s); record() })
	c.tracker.touches = c.tracker.touches[:0]
}

// add appends a command.
func (r *reordering) add(touches []touch, record func()) {
	level := 0
	for i := len(r.list) - 1; i >= 0; i-- {
		if before := &r.list[i]; before.level >= level && conflict(before.touches, touches) {
			level = before.level + 1
		}
	}
	r.list = append(r.list, deferred{level, touches, record})
}

// conflict reports whether commands must keep their order.
func conflict(before, after []touch) bool {
	for _, a := range after {
		for _, b := range before {
			if a.of == b.of && (a.writes || b.writes) && a.start < b.end && b.start < a.end {
				return true
			}
		}
	}
	return false
}

// settle records what is deferred so far.
func (c *Cmd) settle() {
	if c.later == nil {
		return
	}
	list := c.later.list
	c.later.list = nil
	slices.SortStableFunc(list, func(a, b deferred) int { return cmp.Compare(a.level, b.level) })
	for _, x := range list {
		if !c.recording() { // it may be closed
			return
		}
		c.tracker.touches = append(c.tracker.touches[:0], x.touches...)
		x.record()
	}
}
