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

// Reorder begins a part of a recording, which the function that it returns ends, whose commands
// are moved forward as far as those allow whose bytes they read or write: each to the first
// barrier after all of these. What does not depend on each other then runs side by side, wherever
// it was recorded, and fewer barriers stand between:
//
//	recorded   a = f(x)  |  b = g(a)  |  c = h(b)     d = f(y)  |  e = g(d)
//	reordered  a = f(x)     d = f(y)  |  b = g(a)     e = g(d)  |  c = h(b)
//
// The results are the same, bit for bit. Memory that one command writes after another has read
// it holds the first back as well, so memory that is used again soon costs order.
//
// Barrier, BarrierToTransfer, BarrierFromTransfer, Timestamp and Trace are not passed by any
// command. A part inside another changes nothing. Between a Reorder and its end, Barriers counts
// those before.
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
		if c.err != nil {
			return
		}
		c.tracker.touches = append(c.tracker.touches[:0], x.touches...)
		x.record()
	}
}
