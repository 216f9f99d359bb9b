package vk

// Beside calls f, whose dispatches wait for all commands before, but not for each other: workgroups of one may run while
// workgroups of another do. Beside is for kernels that wait for each other's numbers by atomic operations; nothing else that a
// dispatch of f writes is visible to the others. Commands behind Beside wait for all of f. Devices are taken to start workgroups
// in the order of dispatches, which Vulkan does not say. After an error of c, f is not called.
func (c *Cmd) Beside(f func()) {
	later := c.later
	if !c.fence() {
		return
	}
	c.later, c.tracker.beside = nil, true
	f()
	c.later, c.tracker.beside = later, false
	c.fence()
}

// fence records what is deferred, and a barrier between all commands before and all behind.
func (c *Cmd) fence() bool {
	if !c.begin() {
		return false
	}
	defer c.leave()
	c.settle()
	c.barrier(anyScope(), anyScope())
	if c.later != nil {
		c.later.given.barrier(anyScope(), anyScope())
	}
	return true
}
