package vk

import (
	"context"
	"fmt"
	"unsafe"

	vulkan "github.com/vulkan-go/vulkan"
)

// stagingBytes is the size of each staging buffer; larger copies go in pieces.
const stagingBytes = 16 << 20

// staging copies between host and device memory, one copy at a time. Its
// buffers are made at the first use.
type staging struct {
	lock     chan struct{} // holds a token while a copy runs
	up, down block
	rec      recorder
	serial   uint64 // last submission; its buffers are busy until it is done
}

func newStaging() staging { return staging{lock: make(chan struct{}, 1)} }

// acquire waits for its turn and prepares; release ends the turn.
func (s *staging) acquire(ctx context.Context, d *Device) error {
	if !d.enter() {
		return withPrefix(d.errClosed())
	}
	select {
	case s.lock <- struct{}{}:
	case <-ctx.Done():
		d.leave()
		return fmt.Errorf("vk: waiting for another copy: %w", ctx.Err())
	}
	err := s.init(d)
	if err != nil {
		s.release(d)
	}
	return err
}

func (s *staging) release(d *Device) {
	<-s.lock
	d.leave()
}

func (s *staging) init(d *Device) (err error) {
	if s.rec.pool == nil {
		if s.rec, err = d.newRecorder("staging"); err != nil {
			return err
		}
	}
	if s.up.raw == 0 {
		if s.up, err = d.allocate("upload staging", stagingBytes, forUpload()); err != nil {
			return err
		}
	}
	if s.down.raw == 0 {
		s.down, err = d.allocate("download staging", stagingBytes, forDownload())
	}
	return err
}

// close destroys the buffers of an idle device.
func (s *staging) close(d *Device) {
	for _, bl := range []*block{&s.up, &s.down} {
		if bl.raw != 0 {
			d.free(*bl)
		}
		*bl = block{}
	}
	s.rec.destroy(d)
}

// pieces calls f for each piece of bytes bytes of b that fits in the staging memory, n bytes from at,
// while nothing else uses that memory.
func (s *staging) pieces(ctx context.Context, d *Device, b *Buffer, bytes int64, f func(at, n int64) error) error {
	if b.whole().raw == 0 {
		return fmt.Errorf("vk: %w", b.errNoMemory())
	}
	if err := s.acquire(ctx, d); err != nil {
		return err
	}
	defer s.release(d)
	for at := int64(0); at < bytes; at += stagingBytes {
		if err := d.wait(ctx, s.serial); err != nil { // a canceled copy may still run
			return err
		}
		if err := f(at, min(bytes-at, stagingBytes)); err != nil {
			return err
		}
	}
	return nil
}

// upload fills bytes bytes of b from offset, piece by piece: fill writes the
// piece that starts at byte at of the whole into dst.
func (s *staging) upload(ctx context.Context, d *Device, b *Buffer, offset, bytes int64, fill func(dst []byte, at int64)) error {
	return s.pieces(ctx, d, b, bytes, func(at, n int64) error {
		fill(unsafe.Slice((*byte)(s.up.mapped), n), at)
		return s.run(ctx, d, func() {
			d.api.copy(s.rec.cmd, b.whole().raw, b.at+offset+at, s.up.raw, 0, n)
		})
	})
}

// download reads bytes bytes of b from offset: take gets each piece in src.
func (s *staging) download(ctx context.Context, d *Device, b *Buffer, offset, bytes int64, take func(src []byte, at int64)) error {
	return s.pieces(ctx, d, b, bytes, func(at, n int64) error {
		err := s.run(ctx, d, func() {
			d.api.copy(s.rec.cmd, s.down.raw, 0, b.whole().raw, b.at+offset+at, n)
			d.api.barrier(s.rec.cmd, transferScope(), hostScope())
		})
		if err != nil {
			return err
		}
		if s.down.flags&hostCoherent == 0 {
			if r := d.api.invalidate(s.down.memory); r < 0 {
				return callError("vkInvalidateMappedMemoryRanges", int32(r))
			}
		}
		take(unsafe.Slice((*byte)(s.down.mapped), n), at)
		return nil
	})
}

// run records, submits and waits.
func (s *staging) run(ctx context.Context, d *Device, record func()) error {
	if err := s.rec.begin(d); err != nil {
		return err
	}
	record()
	if err := s.rec.end(); err != nil {
		return err
	}
	serial, err := d.submit(ctx, s.rec.cmd, nil)
	if err != nil {
		return err
	}
	s.serial = serial
	return d.waitChecked(ctx, s.serial)
}

// recorder is a command buffer with a pool of its own, so that recording
// needs no lock.
type recorder struct {
	pool vulkan.CommandPool
	cmd  vulkan.CommandBuffer
}

func (d *Device) newRecorder(name string) (rec recorder, err error) {
	if r := d.fault("vkCreateCommandPool"); r < 0 {
		return rec, callError("vkCreateCommandPool", int32(r))
	}
	info := vulkan.CommandPoolCreateInfo{SType: vulkan.StructureTypeCommandPoolCreateInfo, QueueFamilyIndex: d.family}
	defer info.Free()
	var pool vulkan.CommandPool
	if r := vulkan.CreateCommandPool(d.handle, &info, nil, &pool); r < 0 {
		return recorder{}, callError("vkCreateCommandPool", int32(r))
	}
	rec.pool = pool
	alloc := vulkan.CommandBufferAllocateInfo{SType: vulkan.StructureTypeCommandBufferAllocateInfo, CommandPool: rec.pool, CommandBufferCount: 1}
	defer alloc.Free()
	list := make([]vulkan.CommandBuffer, 1)
	if r := vulkan.AllocateCommandBuffers(d.handle, &alloc, list); r < 0 {
		rec.destroy(d)
		return recorder{}, callError("vkAllocateCommandBuffers", int32(r))
	}
	rec.cmd = list[0]
	d.setName(objectCommandBuffer, uint64(uintptr(unsafe.Pointer(rec.cmd))), name)
	return rec, nil
}

func (rec *recorder) destroy(d *Device) {
	vulkan.DestroyCommandPool(d.handle, rec.pool, nil)
	*rec = recorder{}
}

// begin starts a recording that may be submitted again and again. Its first
// command makes it wait for, and see, everything submitted before.
func (rec *recorder) begin(d *Device) error {
	if r := vulkan.ResetCommandPool(d.handle, rec.pool, 0); r < 0 {
		return callError("vkResetCommandPool", int32(r))
	}
	info := vulkan.CommandBufferBeginInfo{SType: vulkan.StructureTypeCommandBufferBeginInfo}
	defer info.Free()
	if r := vulkan.BeginCommandBuffer(rec.cmd, &info); r < 0 {
		return callError("vkBeginCommandBuffer", int32(r))
	}
	d.api.barrier(rec.cmd, anyScope(), anyScope())
	return nil
}

func (rec *recorder) end() error {
	return callError("vkEndCommandBuffer", int32(vulkan.EndCommandBuffer(rec.cmd)))
}

// scope is one side of a barrier.
type scope struct{ stages, access uint32 }

// Compute shaders reading and writing, transfers, both, and host reads.
func computeScope() scope  { return scope{0x800, 0x20 | 0x40} }
func transferScope() scope { return scope{0x1000, 0x800 | 0x1000} }
func anyScope() scope      { return scope{0x800 | 0x1000, 0x20 | 0x40 | 0x800 | 0x1000} }
func hostScope() scope     { return scope{0x4000, 0x2000} }
