package vk

import (
	"context"
	"fmt"
	"slices"
	"unsafe"

	vulkan "github.com/vulkan-go/vulkan"
)

const (
	// stagingBytes is the size of each staging buffer.
	stagingBytes = 16 << 20
	// uploadBytes is the most of one copy to the device: the host fills one while others run.
	uploadBytes = stagingBytes / 4
	// uploadUnit is what the pieces of uploads begin at multiples of: a cache line of the host.
	uploadUnit = 64
	// maxUploads is how many copies to the device are on their way at most. A training step has
	// three.
	maxUploads = 16
)

// staging copies between host and device memory. Its memory is made at the first use. An upload
// does not wait for a download of another goroutine, which waits for the device.
type staging struct {
	up   ring
	down landing
}

// turns lets one call at a time have the memory of a direction: it holds a token meanwhile.
type turns chan struct{}

// ring is the memory that data take to the device. Pieces lie one behind the other, and at the
// beginning again after the end.
type ring struct {
	turns
	block
	at   int64 // where the next piece goes, if there is room
	runs []upload
	recs [maxUploads]recorder
	next int // recorder of the next copy: the oldest one, if all are in use
}

// upload is a copy to the device that may not have finished, and the bytes of the ring that it
// reads.
type upload struct {
	serial uint64
	span
}

// landing is the memory that data take from the device.
type landing struct {
	turns
	block
	rec    recorder
	serial uint64 // of the last copy: memory and recorder are busy until it is done
}

func newStaging() staging {
	return staging{up: ring{turns: make(turns, 1)}, down: landing{turns: make(turns, 1)}}
}

func (s *staging) close(d *Device) {
	for _, bl := range []*block{&s.up.block, &s.down.block} {
		if bl.raw != 0 {
			d.free(*bl)
		}
		*bl = block{}
	}
	s.down.rec.destroy(d)
	for i := range s.up.recs {
		s.up.recs[i].destroy(d)
	}
}

// pieces waits for its turn, and calls f for each piece of bytes bytes of b, n bytes from at and at
// most limit.
func (t turns) pieces(ctx context.Context, b *Buffer, bytes, limit int64, f func(at, n int64) error) error {
	d := b.d
	if b.whole().raw == 0 {
		return fmt.Errorf("vk: %w", b.errNoMemory())
	}
	if !d.enter() {
		return withPrefix(d.errClosed())
	}
	defer d.leave()
	if !b.whole().hold() {
		return fmt.Errorf("vk: %v is closed", b)
	}
	defer b.whole().unhold()
	select {
	case t <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("vk: waiting for another copy: %w", ctx.Err())
	}
	defer func() { <-t }()
	for at := int64(0); at < bytes; at += limit {
		if err := f(at, min(bytes-at, limit)); err != nil {
			return err
		}
	}
	return nil
}

// upload fills blocks of b, piece by piece: fill writes the piece that starts at byte at of the
// packed blocks into dst. It returns when all are submitted, and waits only for room.
func (s *staging) upload(ctx context.Context, b *Buffer, to blocks, fill func(dst []byte, at int64)) error {
	d := b.d
	if d.options.CompileOnly {
		return nil
	}
	var list []region
	return s.up.pieces(ctx, b, to.total(), to.piece(uploadBytes), func(at, n int64) error {
		from, rec, err := s.up.take(ctx, d, n)
		if err != nil {
			return err
		}
		fill(unsafe.Slice((*byte)(unsafe.Add(s.up.mapped, from)), n), at)
		serial, err := rec.run(ctx, d, func() {
			list = to.regions(list[:0], b.at, at, from, n)
			d.api.copy(rec.cmd, b.whole().raw, s.up.raw, list)
		})
		if err == nil {
			s.up.taken(serial, from, n)
		}
		return err
	})
}

// take returns n bytes of r, by the first of them, and a recorder, once no copy uses either.
func (r *ring) take(ctx context.Context, d *Device, n int64) (from int64, rec *recorder, err error) {
	if r.raw == 0 {
		if r.block, err = d.allocate("upload staging", stagingBytes, forUpload); err != nil {
			return 0, nil, err
		}
	}
	if from = r.at; from+n > r.bytes {
		from = 0
	}
	busy := max(0, len(r.runs)+1-len(r.recs)) // how many copies must have finished, the oldest first
	for i, x := range r.runs {
		if x.start < from+n && from < x.end {
			busy = i + 1
		}
	}
	if busy > 0 {
		if err := d.wait(ctx, r.runs[busy-1].serial); err != nil {
			return 0, nil, err
		}
		r.runs = slices.Delete(r.runs, 0, busy)
	}
	rec = &r.recs[r.next]
	if rec.pool == nil {
		*rec, err = d.newRecorder("upload")
	}
	return from, rec, err
}

// taken notes that a copy of what take returned is on its way.
func (r *ring) taken(serial uint64, from, n int64) {
	r.runs = append(r.runs, upload{serial, span{from, from + n}})
	r.next = (r.next + 1) % len(r.recs)
	r.at = (from + n + uploadUnit - 1) &^ (uploadUnit - 1)
}

// download reads blocks of b: take gets each piece of the packed blocks in src.
func (s *staging) download(ctx context.Context, b *Buffer, from blocks, take func(src []byte, at int64)) error {
	d, l := b.d, &s.down
	var list []region
	return l.pieces(ctx, b, from.total(), from.piece(stagingBytes), func(at, n int64) error {
		if err := l.prepare(ctx, d); err != nil {
			return err
		}
		serial, err := l.rec.run(ctx, d, func() {
			list = from.regions(list[:0], b.at, at, 0, n)
			for i, x := range list {
				list[i].from, list[i].to = x.to, x.from
			}
			d.api.copy(l.rec.cmd, l.raw, b.whole().raw, list)
			d.api.barrier(l.rec.cmd, transferScope(), hostScope())
		})
		if err != nil {
			return err
		}
		l.serial = serial
		if err := d.waitChecked(ctx, serial); err != nil {
			return err
		}
		if l.flags&hostCoherent == 0 {
			if r := d.api.invalidate(l.memory); r < 0 {
				return callError("vkInvalidateMappedMemoryRanges", int32(r))
			}
		}
		take(unsafe.Slice((*byte)(l.mapped), n), at)
		return nil
	})
}

// prepare returns when no copy uses l.
func (l *landing) prepare(ctx context.Context, d *Device) (err error) {
	if l.rec.pool == nil {
		if l.rec, err = d.newRecorder("download"); err != nil {
			return err
		}
	}
	if l.raw == 0 {
		if l.block, err = d.allocate("download staging", stagingBytes, forDownload); err != nil {
			return err
		}
	}
	return d.wait(ctx, l.serial) // a canceled copy may still run
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

// run records anew and submits. The recorder is busy until the submission has finished.
func (rec *recorder) run(ctx context.Context, d *Device, record func()) (serial uint64, err error) {
	if err := rec.begin(d); err != nil {
		return 0, err
	}
	record()
	if err := rec.end(); err != nil {
		return 0, err
	}
	return d.submit(ctx, rec.cmd, nil)
}

// scope is one side of a barrier.
type scope struct{ stages, access uint32 }

// Compute shaders reading and writing, transfers, both, and host reads.
func computeScope() scope  { return scope{0x800, 0x20 | 0x40} }
func transferScope() scope { return scope{0x1000, 0x800 | 0x1000} }
func anyScope() scope      { return scope{0x800 | 0x1000, 0x20 | 0x40 | 0x800 | 0x1000} }
func hostScope() scope     { return scope{0x4000, 0x2000} }
