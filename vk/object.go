package vk

import (
	"fmt"
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
	holds   atomic.Int64 // the owner's until it closes o, and those of hold
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

// isClosed reports whether o is unusable.
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
