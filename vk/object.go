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
	release func() // destroys the handles; nil once closed, and guarded by d.mu
	owned   bool   // by another object, which closes it
	closed  bool   // guarded by d.mu
	usable  atomic.Bool
}

// String returns kind and name, as leak lists show them.
func (o *object) String() string { return fmt.Sprintf("%s %q", o.kind, o.name) }

// register makes o live until closed. Release may run on any goroutine and
// with d.mu held.
func (o *object) register(d *Device, kind, name string, release func()) {
	o.d, o.kind, o.name, o.release = d, kind, name, release
	o.usable.Store(true)
	d.mu.Lock()
	d.open[o] = struct{}{}
	d.mu.Unlock()
}

// adopt is register for an object that another one owns and destroys, so that
// it is no leak and close leaves it alone.
func (o *object) adopt(d *Device, kind, name string, release func()) {
	o.d, o.kind, o.name, o.release, o.owned = d, kind, name, release, true
	o.usable.Store(true)
}

// isClosed reports whether o is unusable.
func (o *object) isClosed() bool { return !o.usable.Load() }

// close runs release once the submissions so far have finished, which may be
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
	d.retire(o.release)
	o.release = nil
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
	kept := d.retired[:0]
	for _, r := range d.retired {
		if r.serial <= d.completed {
			r.run()
		} else {
			kept = append(kept, r)
		}
	}
	clear(d.retired[len(kept):])
	d.retired = kept
}
