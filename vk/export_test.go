package vk

// Forget has c take what was recorded for ordered, as if a barrier stood after it.
func (c *Cmd) Forget() { c.tracker.reset() }
