package vk

import (
	"sync"
	"sync/atomic"

	"github.com/flashvk/flashvk/dtype"
)

// Forget has c take what was recorded for ordered, as if a barrier stood after it.
func (c *Cmd) Forget() { c.tracker.reset() }

// ForgetTypes leaves the device without memory for buffers, ForgetCoherence without downloads that need
// no invalidation.
func (d *Device) ForgetTypes()     { d.types = nil }
func (d *Device) ForgetCoherence() { d.staging.down.flags &^= hostCoherent }

// Submitted returns the number of submissions so far.
func (d *Device) Submitted() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.submitted
}

// AwaitHost records a kernel, of testdata/gate.comp, that runs until open is called: it keeps a device
// busy for as long as a test wants. Reached says whether it runs.
func (c *Cmd) AwaitHost(spirv []byte) (reached func() bool, open func()) {
	d := c.d
	k, err := CachedKernel[struct{}](d, "gate", spirv, nil, KernelOptions{})
	if err != nil {
		panic(err)
	}
	// In the device's own memory, if it may: there a kernel that runs sees what the host writes.
	bl, err := d.allocate("gate", 8, []memoryWish{{hostVisible | hostCoherent | deviceLocal, 0}, {hostVisible | hostCoherent, 0}})
	if err != nil {
		panic(err)
	}
	b := &Buffer{block: bl}
	b.register(d, "buffer", "gate", func() { d.free(bl) })
	words := (*[2]atomic.Uint32)(bl.mapped)
	words[0].Store(0)
	words[1].Store(0)
	k.Dispatch(c, Groups{}, struct{}{}, View(b, dtype.Int32, 2))
	reached = func() bool { return words[1].Load() != 0 }
	return reached, sync.OnceFunc(func() {
		words[0].Store(1)
		b.Close()
	})
}
