package vk

import (
	"cmp"
	"slices"
)

// reordering is the part of a recording that Reorder began: its commands wait here for their place.
type reordering struct {
	list []deferred
	// given is the tracker of the commands in the order of their calls, on copies of the uses of
	// objects. The place of scratch memory follows from given: the place decides which commands
	// depend on each other, and so there are no more barriers than without Reorder.
	given  tracker
	copies map[*use]*use
}

// deferred is a command of a part that is reordered.
type deferred struct {
	level   int // commands of one level need nothing of each other; level 0, of nothing before the part
	stage   stage
	touches []touch
	record  func()
}

// mostDeferred is after how many commands a part is reordered by itself: each is compared with
// those before it.
const mostDeferred = 2048

// Reorder begins a part of a recording; the function that it returns ends it. Each command of the
// part moves forward to the first barrier after all commands that it depends on. Independent
// commands then run side by side, wherever they were recorded, with fewer barriers between them,
// and never more:
//
//	recorded   a = f(x)  |  b = g(a)  |  c = h(b)     d = f(y)  |  e = g(d)
//	reordered  a = f(x)     d = f(y)  |  b = g(a)     e = g(d)  |  c = h(b)
//
// The results are the same, bit for bit. A command that writes memory that another has read depends
// on it too, so memory that is reused soon leaves less to move.
//
// No command moves past Barrier, Timestamp or Trace. A part inside another changes nothing. Between a Reorder and its end, Barriers counts the barriers
// before the part.
func (c *Cmd) Reorder() (end func()) {
	if !c.begin() {
		return func() {}
	}
	defer c.leave()
	if c.later != nil {
		return func() {}
	}
	part := &reordering{given: c.tracker, copies: map[*use]*use{}}
	part.given.touches, part.given.spare, part.given.wide = nil, nil, false
	for _, u := range c.uses {
		part.copies[u] = u.clone()
	}
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
		c.run(record)
		return
	}
	if len(c.later.list) == mostDeferred {
		touches := c.tracker.touches
		c.tracker.touches = nil
		c.settle()
		c.tracker.touches = touches
	}
	level := 0
	if c.tracker.conflicts(s) {
		level = 1
	}
	c.later.add(deferred{level, s, slices.Clone(c.tracker.touches), record})
	c.tracker.touches = c.tracker.touches[:0]
}

// run records a command, unless c only measures.
func (c *Cmd) run(record func()) {
	if !c.arena.dry {
		record()
	}
}

// add appends a command, whose level is at least the one that it has.
func (r *reordering) add(x deferred) {
	for i := len(r.list) - 1; i >= 0; i-- {
		if before := &r.list[i]; before.level >= x.level && conflict(before.touches, x.touches) {
			x.level = before.level + 1
		}
	}
	r.list = append(r.list, x)
	for _, touch := range x.touches {
		if r.copies[touch.of] == nil {
			r.copies[touch.of] = new(use)
		}
		touch.of = r.copies[touch.of]
		r.given.touches = append(r.given.touches, touch)
	}
	if r.given.conflicts(x.stage) {
		r.given.barrier(r.given.separation(x.stage))
	}
	r.given.note(x.stage)
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
	wide := c.tight(list)
	defer func() { c.tracker.wide = wide }()
	for len(list) > 0 {
		c.tracker.wide = wide
		n := 1 // commands of the level
		for n < len(list) && list[n].level == list[0].level {
			n++
		}
		c.separateLevel(list[:n])
		for _, x := range list[:n] {
			if !c.recording() { // it may be closed
				return
			}
			c.tracker.touches = append(c.tracker.touches[:0], x.touches...)
			c.tracker.note(x.stage)
			c.run(x.record)
		}
		list = list[n:]
	}
}

// tight reports whether barriers of a sorted part must hold back all commands, lest there be more of
// them than in the order that was given. No order needs fewer than there are levels, if each barrier
// is for both stages. One for dispatches alone may have another for transfers follow, which the
// given order has done with: that is no matter while two barriers are saved.
func (c *Cmd) tight(list []deferred) bool {
	if len(list) == 0 {
		return c.tracker.wide
	}
	saved := c.later.given.recorded - c.tracker.recorded - list[len(list)-1].level
	transfers := c.tracker.pending[transfer][compute] || c.tracker.pending[transfer][transfer]
	for _, x := range list {
		transfers = transfers || x.stage == transfer
	}
	return transfers && saved < 2
}

// separateLevel records the barrier that a level needs, if it needs one: one for all its commands.
func (c *Cmd) separateLevel(level []deferred) {
	var stages []stage
	needed := false
	for _, x := range level {
		if !slices.Contains(stages, x.stage) {
			stages = append(stages, x.stage)
		}
		c.tracker.touches = append(c.tracker.touches[:0], x.touches...)
		needed = needed || c.tracker.conflicts(x.stage)
	}
	c.tracker.touches = c.tracker.touches[:0]
	if needed {
		c.barrier(c.tracker.separation(stages...))
	}
}
