package vk

import (
	"context"
	"fmt"
	"time"

	vulkan "github.com/vulkan-go/vulkan"
)

// submit hands cmd to the queue and returns its serial number. Check, if not
// nil, runs first with d.mu held.
func (d *Device) submit(ctx context.Context, cmd vulkan.CommandBuffer, check func() error) (uint64, error) {
	if err := ctx.Err(); err != nil {
		return 0, fmt.Errorf("vk: not submitted: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if check != nil {
		if err := check(); err != nil {
			return 0, err
		}
	}
	if err := d.newValidationError(); err != nil {
		return 0, err
	}
	if r := d.fault("vkQueueSubmit"); r < 0 {
		return 0, callError("vkQueueSubmit", int32(r))
	}
	if r := d.api.submit(d.queue, cmd, d.timeline, d.submitted+1); r < 0 {
		return 0, callError("vkQueueSubmit", int32(r))
	}
	d.submitted++
	return d.submitted, nil
}

// How long one wait for the device lasts before the context is looked at.
const (
	waitSlice        = time.Second
	waitSliceContext = 2 * time.Millisecond
)

// wait returns when submission serial has finished, or early with the error
// of ctx.
func (d *Device) wait(ctx context.Context, serial uint64) error {
	if d.finished(serial) {
		return nil
	}
	slice := waitSlice
	if ctx.Done() != nil {
		slice = waitSliceContext
	}
	if r := d.fault("vkWaitSemaphores"); r < 0 {
		return callError("vkWaitSemaphores", int32(r))
	}
	for {
		r := d.api.timelineWait(d.timeline, serial, uint64(slice))
		if r < 0 {
			return callError("vkWaitSemaphores", int32(r))
		}
		if r != resultTimeout {
			break
		}
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("vk: still running: %w", err)
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.completed = max(d.completed, serial)
	d.runRetired()
	return nil
}

// waitChecked is wait for a caller who reports what the validation layer says.
func (d *Device) waitChecked(ctx context.Context, serial uint64) error {
	if err := d.wait(ctx, serial); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.newValidationError()
}

// finished reports whether submission serial is known to have finished.
func (d *Device) finished(serial uint64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return serial <= d.completed
}
