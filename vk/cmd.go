package vk

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	vulkan "github.com/vulkan-go/vulkan"
)

// Cmd is a list of recorded commands that can be submitted any number of times. It belongs to one
// goroutine. If another goroutine is in a call at the same time, that call does nothing, and Submit
// returns an error until Reset.
//
//	c, err := d.NewCmd("step")      recording
//	k.Dispatch(c, ...)
//	c.Timestamp(t, 0)
//	err = c.Submit(ctx)             recording ends; runs; waits
//	err = c.Submit(ctx)             runs again
//	c.Reset()                       recording anew
//
// Recording calls return no errors: Cmd keeps the first one, skips the calls after it, and returns
// it from Err and Submit. Functions of kernel packages return their errors and also leave them with
// the Cmd (see Keep).
//
// Commands of one Cmd run side by side if they share no bytes, and otherwise in the order of
// recording. Cmd knows what each command touches: a transfer its range, a dispatch the whole buffer
// or slice of each tensor, read or written as the instructions of the kernel say (access.go). It
// records a barrier only before a command that
//
//	reads   memory that a command since the last barrier wrote
//	writes  memory that a command since the last barrier read or wrote
//
// A barrier holds back all later commands, so the order of recording decides what runs side by
// side. Record independent commands next to each other, or let Reorder bring them there.
// Tensor.Narrow and Buffer.Slice bind parts of a buffer, so that kernels that write different parts
// need no barrier between them. Interleaved parts, such as columns of a matrix, count from their
// first to their last byte.
//
// Barrier records one more, between dispatches. It is for measurements.
//
// Separate submissions need no barriers.
type Cmd struct {
	object
	rec     recorder
	err     error
	ended   bool   // recording has ended
	serial  uint64 // last submission, 0 for none
	pools   []vulkan.DescriptorPool
	pool    int // index of the pool in use
	arena   arena
	zeros   arena
	scopes  []scopeMark      // that have not ended
	opened  int              // calls of Scope
	resets  uint64           // calls of Reset
	uses    map[*object]*use // what the commands refer to
	tracker tracker
	later   *reordering // of a part that Reorder began
	checked uint64      // d.closings when uses was last found open
	timers  []*Timer
	trace   *Trace       // times each dispatch; nil: none does
	args    dispatchArgs // kept here so that a dispatch allocates nothing
	busy    atomic.Bool  // a goroutine is in a call
	misused atomic.Bool  // another was, at the same time
	closing atomic.Bool  // Close was called
}

// Sets and storage buffers of one descriptor pool.
const (
	poolSets    = 64
	poolBuffers = 8 * poolSets
)

// NewCmd returns an empty Cmd, ready to record.
func (d *Device) NewCmd(name string) (*Cmd, error) {
	if !d.enter() {
		return nil, withPrefix(d.errClosed())
	}
	defer d.leave()
	if d.options.CompileOnly {
		return nil, fmt.Errorf("vk: cmd %q: device %q only compiles (Options.CompileOnly): %w", name, d.name, ErrUnsupported)
	}
	rec, err := d.newRecorder(name)
	if err != nil {
		return nil, err
	}
	if err := rec.begin(d); err != nil {
		rec.destroy(d)
		return nil, err
	}
	c := &Cmd{rec: rec, uses: map[*object]*use{}, zeros: arena{zero: true}}
	c.register(d, "cmd", name, c.destroy)
	return c, nil
}

// Run records commands, runs them once, and waits until they are done, as NewCmd, Submit and Close do.
// Its errors come from record and from Submit.
func (d *Device) Run(ctx context.Context, name string, record func(c *Cmd) error) error {
	c, err := d.NewCmd(name)
	if err != nil {
		return err
	}
	defer c.Close()
	if err := record(c); err != nil {
		return err
	}
	return c.Submit(ctx)
}

// destroy releases everything; d.mu is held.
func (c *Cmd) destroy() {
	c.rec.destroy(c.d)
	for _, p := range c.pools {
		vulkan.DestroyDescriptorPool(c.d.handle, p, nil)
	}
	c.arena.close()
	c.zeros.close()
	c.pools = nil
	c.release((*object).unholdLocked)
}

// Device returns the device that c records for.
func (c *Cmd) Device() *Device { return c.d }

// Err returns the first error of recording, or nil.
func (c *Cmd) Err() error { return c.err }

func (c *Cmd) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("vk: cmd %q: "+format, append([]any{c.name}, args...)...)
	}
}

// Keep makes *err the error of c, if c has none yet: Submit returns it and runs nothing. It is for
// functions that record kernels and return an error,
//
//	func Forward(c *vk.Cmd, …) (err error) {
//		defer c.Keep(&err)
//
// so that nothing runs if the caller ignores the error.
func (c *Cmd) Keep(err *error) {
	if c.err == nil {
		c.err = *err
	}
}

// recording reports whether a command may be recorded, and keeps an error if
// c was submitted already.
func (c *Cmd) recording() bool {
	if c.err == nil && c.isClosed() {
		c.fail("recorded after Close")
	}
	if c.err == nil && c.ended {
		c.fail("recorded after Submit, Reset comes first")
	}
	return c.err == nil
}

// Close does not wait: the commands in flight finish, then everything that c owns is destroyed. It
// is idempotent and may be called on nil.
func (c *Cmd) Close() {
	if c != nil {
		c.closing.Store(true)
		c.finish()
	}
}

// finish closes c after Close, at once or when the call of another goroutine ends.
func (c *Cmd) finish() {
	if c.isClosed() || !c.busy.CompareAndSwap(false, true) {
		return
	}
	c.d.mu.Lock()
	c.arena.invalidate() // another Cmd may refer to them
	c.zeros.invalidate()
	c.d.mu.Unlock()
	c.object.close()
	c.busy.Store(false)
}

// Reset forgets the commands and the error, and starts a new recording. It waits for commands in
// flight. Earlier Scratch buffers become invalid.
func (c *Cmd) Reset() {
	if !c.enter() {
		return
	}
	defer c.leave()
	c.misused.Store(false)
	c.err = nil
	if c.isClosed() {
		c.fail("Reset after Close")
		return
	}
	if err := c.d.wait(context.Background(), c.serial); err != nil {
		c.err = err
		return
	}
	for _, p := range c.pools {
		vulkan.ResetDescriptorPool(c.d.handle, p, 0) // always succeeds
	}
	c.arena.reset(c.d)
	c.zeros.reset(c.d)
	c.resets++
	c.scopes = c.scopes[:0]
	c.clearUses()
	c.pool, c.ended, c.serial, c.timers, c.trace, c.later = 0, false, 0, c.timers[:0], nil, nil
	if !c.arena.dry {
		c.err = c.rec.begin(c.d)
	}
}

// A ModuleInfo is a SPIR-V module of recorded kernels.
type ModuleInfo struct {
	Name  string // of the kernels
	SPIRV []byte // shared: do not change
}

// Modules lists the modules of the dispatches recorded so far, by name. Kernels of one module with
// different specializations count once.
func (c *Cmd) Modules() []ModuleInfo {
	var list []ModuleInfo
	for _, u := range c.uses {
		if k := u.kernel; k != nil {
			list = append(list, ModuleInfo{k.name, k.code})
		}
	}
	slices.SortFunc(list, func(a, b ModuleInfo) int { return cmp.Compare(a.Name, b.Name) })
	return slices.CompactFunc(list, func(a, b ModuleInfo) bool { return a.Name == b.Name })
}

// checkUses reports an object that was closed since it was recorded. The
// caller holds d.mu.
func (c *Cmd) checkUses() error {
	if c.checked == c.d.closings {
		return nil
	}
	for o := range c.uses {
		if o.closed {
			return fmt.Errorf("vk: cmd %q refers to %v, which is closed", c.name, o)
		}
	}
	c.checked = c.d.closings
	return nil
}

// Barrier makes the dispatches after it wait for, and see the writes of, the
// dispatches before it.
func (c *Cmd) Barrier() {
	if c.begin() {
		defer c.leave()
		c.settle()
		c.barrier(computeScope(), computeScope())
		if c.later != nil {
			c.later.given.barrier(computeScope(), computeScope())
		}
	}
}

func (c *Cmd) barrier(from, to scope) {
	if !c.recording() { // it may be closed
		return
	}
	if !c.arena.dry {
		c.d.api.barrier(c.rec.cmd, from, to)
	}
	c.tracker.barrier(from, to)
	if c.trace != nil {
		c.trace.barrier(from, to)
	}
}

func (c *Cmd) poison(b *Buffer) {
	if word := c.d.options.PoisonScratch; word != 0 {
		c.fill(b, 0, b.bytes&^3, word)
	}
}

// Fill sets size bytes of b from offset to copies of word. Offset and size
// are multiples of 4.
func (c *Cmd) Fill(b *Buffer, offset, size int64, word uint32) {
	if c.begin() {
		defer c.leave()
		c.fill(b, offset, size, word)
	}
}

func (c *Cmd) fill(b *Buffer, offset, size int64, word uint32) {
	if !c.checkTransfer("Fill", b, offset, size, true) {
		return
	}
	c.put(transfer, func() { c.d.api.fill(c.rec.cmd, b.whole().raw, b.at+offset, size, word) })
}

// updateBytes is the most that one vkCmdUpdateBuffer takes.
const updateBytes = 65536

// Write sets b from offset on to a copy of data, made when Write is called. It is for tables of a
// few kilobytes; Buffer.Upload is for more. Offset and the length are multiples of 4.
func (c *Cmd) Write(b *Buffer, offset int64, data []byte) {
	if !c.begin() {
		return
	}
	defer c.leave()
	if !c.checkTransfer("Write", b, offset, int64(len(data)), true) {
		return
	}
	if c.later != nil {
		data = slices.Clone(data)
	}
	c.put(transfer, func() {
		at := b.at + offset
		for part := range slices.Chunk(data, updateBytes) {
			c.d.api.update(c.rec.cmd, b.whole().raw, at, part)
			at += int64(len(part))
		}
	})
}

// Copy copies size bytes from src at srcOffset to dst at dstOffset. The
// ranges must not overlap.
func (c *Cmd) Copy(dst *Buffer, dstOffset int64, src *Buffer, srcOffset, size int64) {
	if !c.begin() {
		return
	}
	defer c.leave()
	if !c.checkTransfer("Copy", dst, dstOffset, size, true) || !c.checkTransfer("Copy", src, srcOffset, size, false) {
		return
	}
	to, from := dst.at+dstOffset, src.at+srcOffset
	if dst.whole() == src.whole() && to < from+size && from < to+size {
		c.fail("Copy: ranges %d+%d and %d+%d of %v overlap", to, size, from, size, dst.whole())
		return
	}
	c.put(transfer, func() { c.d.api.copy(c.rec.cmd, dst.whole().raw, src.whole().raw, []region{{from, to, size}}) })
}

// checkTransfer checks a range for Fill, Write and Copy and notes the use of b.
func (c *Cmd) checkTransfer(call string, b *Buffer, offset, size int64, writes bool) bool {
	err := b.checkRange(offset, size)
	switch {
	case err != nil:
		c.fail("%s: %w", call, err)
	case size == 0:
		c.fail("%s: size must be positive", call)
	case call != "Copy" && (offset%4 != 0 || size%4 != 0):
		c.fail("%s: range %d+%d of buffer %q is not a multiple of 4", call, offset, size, b.name)
	case b.d != c.d:
		c.fail("%s: buffer %q is of another device", call, b.name)
	case b.whole().raw == 0 && !c.arena.dry:
		c.fail("%s: %w", call, b.errNoMemory())
	default:
		c.tracker.touch(c.use(&b.whole().object), b.at+offset, b.at+offset+size, writes)
	}
	return c.err == nil
}

// Submit runs the commands and waits until they are done. The first call ends the recording; later
// calls run the same commands again.
//
// If there is an error of recording, Submit returns it and runs nothing. If ctx ends first, Submit
// returns its error; the commands run on, and everything that they use stays alive until they have
// finished.
func (c *Cmd) Submit(ctx context.Context) error {
	if err := c.Start(ctx); err != nil {
		return err
	}
	return c.Wait(ctx)
}

// Start is Submit without the wait. It first waits for an earlier run of c, since runs must not
// overlap. If ctx has ended, nothing is submitted.
func (c *Cmd) Start(ctx context.Context) error {
	if !c.enter() {
		return c.errEntered()
	}
	defer c.leave()
	if c.misused.Load() {
		return c.errMisused()
	}
	if c.err == nil && c.isClosed() {
		c.fail("submitted after Close")
	}
	if c.err != nil {
		return c.err
	}
	if c.arena.dry {
		return fmt.Errorf("vk: cmd %q only measures", c.name)
	}
	if !c.ended {
		if c.settle(); c.err != nil {
			return c.err
		}
		c.later = nil
		if c.err = c.rec.end(); c.err != nil {
			return c.err
		}
		c.ended = true
		c.release((*object).unhold)
	}
	if err := c.wait(ctx); err != nil {
		return err
	}
	serial, err := c.d.submit(ctx, c.rec.cmd, c.checkUses)
	if err != nil {
		return err
	}
	c.serial = serial
	for _, t := range c.timers {
		t.serial = serial
	}
	return nil
}

// Wait waits for the last Start, if there was one.
func (c *Cmd) Wait(ctx context.Context) error {
	if !c.enter() {
		return c.errEntered()
	}
	defer c.leave()
	return c.wait(ctx)
}

func (c *Cmd) wait(ctx context.Context) error {
	if c.isClosed() {
		return fmt.Errorf("vk: cmd %q is closed", c.name)
	}
	return c.d.waitChecked(ctx, c.serial)
}
