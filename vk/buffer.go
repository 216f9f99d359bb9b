package vk

import (
	"context"
	"errors"
	"fmt"
	"math"
	"unsafe"

	vulkan "github.com/vulkan-go/vulkan"
)

// Buffer is a block of device memory for kernels, or a slice of one. Several goroutines may use it:
// copies that have begun when one of them calls Close finish, later ones are errors.
type Buffer struct {
	object
	block
	root *Buffer // of a slice, which has its memory; nil: b has memory of its own
	at   int64   // byte of root at which a slice begins
}

// block is a VkBuffer with memory of its own.
type block struct {
	buffer vulkan.Buffer
	memory vulkan.DeviceMemory
	raw    uint64 // buffer as a number
	bytes  int64
	label  string         // name of the buffer that it was allocated for
	taken  int64          // bytes of memory: what the driver wants for bytes
	mapped unsafe.Pointer // nil if the host does not see the memory
	flags  uint32         // of the memory type
}

// Memory property flags, and the flag sets to look for, best first.
const (
	deviceLocal  = 1
	hostVisible  = 2
	hostCoherent = 4
	hostCached   = 8
)

// memoryWish is a set of flags that a memory type must and must not have.
type memoryWish struct{ must, not uint32 }

var (
	// inDevice prefers memory that the host does not see: on discrete GPUs that is the large ordinary
	// heap.
	inDevice = []memoryWish{{deviceLocal, hostVisible}, {deviceLocal, 0}, {0, 0}}
	// forUpload is memory that the host writes and the device copies from.
	forUpload = []memoryWish{{hostVisible | hostCoherent, deviceLocal}, {hostVisible | hostCoherent, 0}}
	// forDownload must be cached: reading a megabyte of uncached memory takes the host seconds.
	forDownload = []memoryWish{
		{hostVisible | hostCached | hostCoherent, deviceLocal}, {hostVisible | hostCached | hostCoherent, 0},
		{hostVisible | hostCached, 0}, {hostVisible | hostCoherent, 0},
	}
)

// findType returns the first memory type among allowed that fits the best
// possible wish.
func findType(types []memoryType, allowed uint32, wishes []memoryWish) (int, bool) {
	for _, w := range wishes {
		for i, t := range types {
			if allowed>>i&1 != 0 && t.flags&w.must == w.must && t.flags&w.not == 0 {
				return i, true
			}
		}
	}
	return 0, false
}

// NewBuffer allocates device memory for kernels; its content is undefined. Kernels see the size
// rounded up to 16 bytes, so that 16-byte loads of the last elements are inside.
//
// Bytes must be positive and at most Caps.MaxAllocationBytes and Caps.MaxBufferBytes, else the
// error wraps ErrUnsupported. If there is not enough memory, it wraps ErrOutOfDeviceMemory.
func (d *Device) NewBuffer(name string, bytes int64) (*Buffer, error) {
	if !d.enter() {
		return nil, fmt.Errorf("vk: buffer %q of %d bytes: %w", name, bytes, d.errClosed())
	}
	defer d.leave()
	if d.options.CompileOnly {
		return d.Placeholder(name, bytes), nil
	}
	bl, err := d.allocate(name, bytes, inDevice)
	if err != nil {
		return nil, err
	}
	b := &Buffer{block: bl}
	b.register(d, "buffer", name, func() { d.free(bl) })
	return b, nil
}

// wholeBytes returns how many bytes a buffer of that size gets: whole words, since kernels
// read bytes as parts of words, and whole 16 bytes, since kernels read the aligned 16
// bytes around an element, of which a device that guards buffers returns zeros if one
// of them is outside. At the device's limit it is words only.
func (d *Device) wholeBytes(bytes int64) int64 {
	limit := min(d.caps.MaxAllocationBytes, d.caps.MaxBufferBytes, d.caps.MaxStorageBufferRange)
	if whole := (bytes + 15) &^ 15; uint64(whole) <= limit {
		return whole
	}
	return (bytes + 3) &^ 3
}

// allocate makes a buffer with memory; on failure nothing is left. If memory is short, allocate
// waits for the memory of closed buffers that submissions still use.
func (d *Device) allocate(name string, bytes int64, wishes []memoryWish) (block, error) {
	bl, err := d.allocateNow(name, bytes, wishes)
	if errors.Is(err, ErrOutOfDeviceMemory) && d.reclaim() {
		return d.allocateNow(name, bytes, wishes)
	}
	return bl, err
}

// reclaim waits for the submissions that hold up destructions, and reports whether there were any.
func (d *Device) reclaim() bool {
	d.mu.Lock()
	last := uint64(0)
	for _, r := range d.retired {
		last = max(last, r.serial)
	}
	d.mu.Unlock()
	return last > 0 && d.wait(context.Background(), last) == nil
}

func (d *Device) allocateNow(name string, bytes int64, wishes []memoryWish) (_ block, err error) {
	fail := func(err error) (block, error) {
		return block{}, fmt.Errorf("vk: buffer %q of %d bytes: %w", name, bytes, err)
	}
	if err := d.checkSize(bytes); err != nil {
		return fail(err)
	}
	if limit := int64(d.caps.MaxAllocations); d.numAllocs.Add(1) > limit { // there may be as few as 4096
		d.numAllocs.Add(-1)
		return fail(fmt.Errorf("%d buffers are open, the most that the device allows: %w", limit, ErrOutOfDeviceMemory))
	}
	bl := block{bytes: bytes, label: name}
	defer func() {
		if err != nil {
			d.free(bl)
		}
	}()
	// Storage buffer, and source and destination of transfers.
	info := vulkan.BufferCreateInfo{SType: vulkan.StructureTypeBufferCreateInfo, Size: vulkan.DeviceSize(d.wholeBytes(bytes)), Usage: 0x20 | 0x1 | 0x2}
	defer info.Free()
	if r := d.fault("vkCreateBuffer"); r < 0 {
		return fail(partError("vkCreateBuffer", int32(r)))
	}
	var buffer vulkan.Buffer
	if r := vulkan.CreateBuffer(d.handle, &info, nil, &buffer); r < 0 {
		return fail(partError("vkCreateBuffer", int32(r)))
	}
	bl.buffer = buffer
	bl.raw = uint64(uintptr(unsafe.Pointer(bl.buffer)))
	if err := d.bindMemory(&bl, wishes); err != nil {
		return fail(err)
	}
	d.setName(objectBuffer, bl.raw, name)
	return bl, nil
}

// bindMemory allocates and, if the host sees it, maps the memory of bl.
func (d *Device) bindMemory(bl *block, wishes []memoryWish) error {
	var need vulkan.MemoryRequirements
	vulkan.GetBufferMemoryRequirements(d.handle, bl.buffer, &need)
	need.Deref()
	defer need.Free()
	t, ok := findType(d.types, need.MemoryTypeBits, wishes)
	if !ok {
		return fmt.Errorf("no memory type fits: %w", ErrUnsupported)
	}
	bl.flags = d.types[t].flags
	if size := d.caps.Heaps[d.types[t].heap].SizeBytes; uint64(need.Size) > size {
		return fmt.Errorf("the memory heap has %d bytes: %w", size, ErrOutOfDeviceMemory)
	}
	info := vulkan.MemoryAllocateInfo{SType: vulkan.StructureTypeMemoryAllocateInfo, AllocationSize: need.Size, MemoryTypeIndex: uint32(t)}
	defer info.Free()
	if r := d.fault("vkAllocateMemory"); r < 0 {
		return partError("vkAllocateMemory", int32(r))
	}
	var memory vulkan.DeviceMemory
	if r := vulkan.AllocateMemory(d.handle, &info, nil, &memory); r < 0 {
		return partError("vkAllocateMemory", int32(r))
	}
	bl.memory, bl.taken = memory, int64(need.Size)
	d.memory.add(bl.label, bl.taken)
	if r := vulkan.BindBufferMemory(d.handle, bl.buffer, bl.memory, 0); r < 0 {
		return partError("vkBindBufferMemory", int32(r))
	}
	if bl.flags&hostVisible == 0 {
		return nil
	}
	var mapped unsafe.Pointer
	r := vulkan.MapMemory(d.handle, bl.memory, 0, vulkan.DeviceSize(vulkan.WholeSize), 0, &mapped)
	bl.mapped = mapped
	return partError("vkMapMemory", int32(r))
}

// checkSize checks the size of a buffer.
func (d *Device) checkSize(bytes int64) error {
	if bytes <= 0 {
		return fmt.Errorf("the size must be positive")
	}
	if limit := d.largest(); bytes > limit {
		return fmt.Errorf("more than one allocation may have, %d bytes: %w", limit, ErrUnsupported)
	}
	return nil
}

// largest returns the bytes of the largest buffer.
func (d *Device) largest() int64 {
	return int64(min(d.caps.MaxAllocationBytes, d.caps.MaxBufferBytes, math.MaxInt64))
}

func (d *Device) free(bl block) {
	vulkan.DestroyBuffer(d.handle, bl.buffer, nil)
	vulkan.FreeMemory(d.handle, bl.memory, nil) // also unmaps
	d.memory.remove(bl.label, bl.taken)
	d.numAllocs.Add(-1)
}

// Bytes returns the size.
func (b *Buffer) Bytes() int64 { return b.bytes }

// Name returns the debug name; a slice has the name of its buffer.
func (b *Buffer) Name() string { return b.name }

// Close frees the memory once the submissions so far have finished, and recordings that refer to it
// have ended (by Submit, which is an error then, or by Reset or Close of the Cmd). It is idempotent
// and may be called on nil. It leaves a Scratch buffer to its Cmd, and does nothing to a slice.
func (b *Buffer) Close() {
	if b != nil && !b.owned {
		b.object.close()
	}
}

func (b *Buffer) checkRange(offset, bytes int64) error {
	if b == nil || b.d == nil || b.isClosed() {
		return fmt.Errorf("the buffer is closed or was never made")
	}
	if offset < 0 || bytes < 0 || offset > b.bytes-bytes {
		return fmt.Errorf("%v has %d bytes, range %d+%d is outside", b, b.bytes, offset, bytes)
	}
	return nil
}

// Upload copies data into b at offset, in bytes. It has taken the data when it returns, and waits for
// the device only while its staging memory is full. The copy runs after everything submitted so far,
// and before all that is submitted later. An error of the device may come from the next call that
// waits. After an error, also one of ctx, the range may be partly written.
func (b *Buffer) Upload(ctx context.Context, offset int64, data []byte) error {
	if err := b.checkRange(offset, int64(len(data))); err != nil {
		return fmt.Errorf("vk: upload: %w", err)
	}
	return b.d.staging.upload(ctx, b, blocks{at: offset, bytes: int64(len(data))}, func(dst []byte, at int64) { copy(dst, data[at:]) })
}

// Download copies len(data) bytes of b from offset into data, and returns when they are there. It
// runs after everything submitted so far. Its errors include the errors of uploads that did not
// wait.
func (b *Buffer) Download(ctx context.Context, offset int64, data []byte) error {
	if err := b.checkRange(offset, int64(len(data))); err != nil {
		return fmt.Errorf("vk: download: %w", err)
	}
	return b.d.staging.download(ctx, b, blocks{at: offset, bytes: int64(len(data))}, func(src []byte, at int64) { copy(data[at:], src) })
}

// Object types for debug names.
const (
	objectCommandBuffer = 6
	objectBuffer        = 9
	objectPipeline      = 19
)

func (d *Device) setName(objectType uint32, handle uint64, name string) {
	if d.instance.messages != nil {
		d.api.setName(objectType, handle, name)
	}
}

// Slice returns the bytes of b from offset on as a buffer. Kernels see only these bytes, rounded up
// to 16 if b has more, and all offsets count from the start of the slice. Two kernels of a Cmd that
// write slices without a common byte need no barrier between them.
//
// Offset is a multiple of 16 and of Caps.MinStorageBufferOffsetAlignment, which is a power of two
// of at most 256. The range is not empty and lies within b. The error names the value that breaks a
// rule.
//
// A slice is a view: it needs no Close, and is closed when b is. A slice of a slice is a slice of
// its buffer.
func (b *Buffer) Slice(offset, bytes int64) (*Buffer, error) {
	if err := b.checkRange(offset, bytes); err != nil {
		return nil, fmt.Errorf("vk: slice: %w", err)
	}
	if bytes == 0 {
		return nil, fmt.Errorf("vk: slice of %v: the size must be positive", b)
	}
	if align := b.d.sliceAlignment(); offset%align != 0 {
		return nil, fmt.Errorf("vk: slice of %v: offset %d is not a multiple of %d", b, offset, align)
	}
	return b.part(b.name, offset, bytes), nil
}

func (b *Buffer) part(name string, offset, bytes int64) *Buffer {
	s := &Buffer{root: b.whole(), at: b.at + offset, block: block{bytes: bytes}}
	s.d, s.kind, s.name, s.owned = b.d, "slice", name, true
	return s
}

// sliceAlignment returns what slices begin at multiples of: what descriptors demand, and
// whole 16 bytes, as kernels read and write them.
func (d *Device) sliceAlignment() int64 {
	return max(int64(d.caps.MinStorageBufferOffsetAlignment), 16)
}

// whole returns the buffer that has b's memory: b itself, if it is no slice.
func (b *Buffer) whole() *Buffer {
	if b.root != nil {
		return b.root
	}
	return b
}

func (b *Buffer) isClosed() bool { return b.whole().object.isClosed() }

// String returns kind and name, and the range of a slice, for errors.
func (b *Buffer) String() string {
	if b.root == nil {
		return b.object.String()
	}
	return fmt.Sprintf("slice %d+%d of %v", b.at, b.bytes, b.root)
}

// bound returns what a kernel sees of b.
func (b *Buffer) bound() bufferRange {
	if b.root == nil {
		return bufferRange{b.raw, 0, ^uint64(0)} // VK_WHOLE_SIZE
	}
	d := b.d
	return bufferRange{b.root.raw, uint64(b.at), uint64(min(d.wholeBytes(b.bytes), d.wholeBytes(b.root.bytes)-b.at))}
}
