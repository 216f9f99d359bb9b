package trial

import (
	"context"

	"github.com/flashvk/flashvk/vk"
)

// A Runner runs the calls of problems on a device. It may be shared by goroutines.
type Runner struct {
	d *vk.Device
}

// Device returns the device.
func (r *Runner) Device() *vk.Device { return r.d }

// Submit records a call, with poison before it, and runs it.
func (r *Runner) Submit(ctx context.Context, name string, record func(c *vk.Cmd) error) error {
	c, err := r.d.NewCmd(name)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := r.Record(c, record); err != nil {
		return err
	}
	return c.Submit(ctx)
}

// Record records a call into a Cmd of the caller, with poison before it.
func (r *Runner) Record(c *vk.Cmd, record func(c *vk.Cmd) error) error {
	return record(c)
}
