package vk

import (
	"fmt"
	"math"
	"sync/atomic"
)

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

// errEntered is why enter returned false.
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

// errMisused is the error of a Cmd that two goroutines use at once.
func (c *Cmd) errMisused() error {
	return fmt.Errorf("vk: cmd %q is used by two goroutines at once", c.name)
}
