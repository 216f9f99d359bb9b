package vk

// Forget has c take what was recorded for ordered, as if a barrier stood after it.
func (c *Cmd) Forget() { c.tracker.reset() }

// Submitted returns the number of submissions so far.
func (d *Device) Submitted() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.submitted
}
