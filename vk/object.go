package vk

import (
	"fmt"
	"math"
	"sync/atomic"
)

// object is what Buffer, Cmd, Timer and Kernel have in common: an owner, a
// name, and a destruction that waits for the submissions in flight.
type object struct {
	_       noCopy
	d       *Device
	kind    string
	name    string
	release func() // destroys the handles
	owned   bool   // by another object, which closes it
	closed  bool   // guarded by d.mu
	usable  atomic.Bool
	holds   atomic.Int64 // the owner's until the owner closes o, and one for each hold
}

// String returns kind and name, as leak lists show them.
func (o *object) String() string { return fmt.Sprintf("%s %q", o.kind, o.name) }

// register makes o live until closed. Release may run on any goroutine and
// with d.mu held.
func (o *object) register(d *Device, kind, name string, release func()) {
	o.adopt(d, kind, name, release)
	o.owned = false
	d.mu.Lock()
	d.open[o] = struct{}{}
	d.mu.Unlock()
}

// adopt is register for an object that another one owns and destroys, so that
// it is no leak and close leaves it alone.
func (o *object) adopt(d *Device, kind, name string, release func()) {
	o.d, o.kind, o.name, o.release, o.owned = d, kind, name, release, true
	o.usable.Store(true)
	o.holds.Store(1)
}

func (o *object) isClosed() bool { return !o.usable.Load() }

// close runs release once nothing holds o and the submissions so far have finished, which may be
// now. It is idempotent.
func (o *object) close() {
	if o.d == nil || o.owned {
		return
	}
	d := o.d
	d.mu.Lock()
	defer d.mu.Unlock()
	if o.closed {
		return
	}
	o.closed = true
	delete(d.open, o)
	d.closings++
	o.usable.Store(false)
	o.unholdLocked()
}

// hold keeps the handles of o until unhold, whoever closes o in between. It returns false if they
// may be gone already.
func (o *object) hold() bool {
	for {
		n := o.holds.Load()
		if n == 0 || o.holds.CompareAndSwap(n, n+1) {
			return n > 0
		}
	}
}

func (o *object) unhold() {
	if o.holds.Add(-1) == 0 {
		o.d.mu.Lock()
		defer o.d.mu.Unlock()
		o.d.retire(o.release)
	}
}

// unholdLocked is unhold of a caller who holds d.mu.
func (o *object) unholdLocked() {
	if o.holds.Add(-1) == 0 {
		o.d.retire(o.release)
	}
}

// retire runs a destruction once the submissions so far have finished, which may be now. The caller
// holds d.mu.
func (d *Device) retire(run func()) {
	d.retired = append(d.retired, retired{d.submitted, run})
	d.poll()
}

// poll learns how far the queue is and destroys what no submission needs any
// more. The caller holds d.mu.
func (d *Device) poll() {
	if d.completed < d.submitted {
		if v, r := d.api.timelineValue(d.timeline); r >= 0 {
			d.completed = max(d.completed, v)
		}
	}
	d.runRetired()
}

// runRetired runs the destructions that are due. The caller holds d.mu.
func (d *Device) runRetired() {
	list := d.retired
	d.retired = nil
	for _, r := range list {
		if r.serial <= d.completed {
			r.run() // which may retire more
		} else {
			d.retired = append(d.retired, r)
		}
	}
}

// life counts the calls that are using a device, so that Close waits for them, and those
// after it are errors instead of calls of a driver that has gone.
type life struct {
	calls atomic.Int64 // in flight; less by closing once Close was called
	idle  chan struct{}
}

const closing = math.MinInt64 / 2

// enter begins a call that uses the device, which leave ends. It returns false if the device
// is closed, or about to be.
func (l *life) enter() bool {
	if l.calls.Add(1) > 0 {
		return true
	}
	l.leave()
	return false
}

func (l *life) leave() {
	if l.calls.Add(-1) == closing {
		select {
		case l.idle <- struct{}{}:
		default: // it was said before
		}
	}
}

// end lets no more calls in, and waits for those in flight. It returns false if there was an
// end before.
func (l *life) end() bool {
	for {
		n := l.calls.Load()
		if n < 0 {
			return false
		}
		if l.calls.CompareAndSwap(n, n+closing) {
			if n > 0 {
				<-l.idle
			}
			return true
		}
	}
}

// enter begins a call of c, which leave ends. It returns false, and leaves an error for Submit,
// if another goroutine is in one, or the device is closed.
func (c *Cmd) enter() bool {
	if !c.busy.CompareAndSwap(false, true) {
		c.misused.Store(true)
		return false
	}
	if c.d.enter() {
		return true
	}
	c.fail("%w", c.d.errClosed())
	c.busy.Store(false)
	return false
}

// begin is enter of a call that records. It returns false where nothing may be recorded.
func (c *Cmd) begin() bool {
	if !c.enter() {
		return false
	}
	if !c.recording() {
		c.leave()
		return false
	}
	return true
}

func (c *Cmd) errEntered() error {
	if c.misused.Load() {
		return c.errMisused()
	}
	return withPrefix(c.d.errClosed())
}

func (c *Cmd) leave() {
	c.d.leave()
	c.busy.Store(false)
	if c.closing.Load() {
		c.finish()
	}
}

func (c *Cmd) errMisused() error {
	return fmt.Errorf("vk: cmd %q is used by two goroutines at once", c.name)
}
