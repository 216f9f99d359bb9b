package vk

import (
	"context"
	"fmt"
	"slices"

	"github.com/flashvk/flashvk/dtype"
)

// arena is the memory that a Cmd hands out as scratch buffers. Those of a Scope that has
// ended give their bytes to later ones.
type arena struct {
	blocks []*arenaBlock
	taken  []taken // in the order of Scratch
	want   int64   // bytes of the first block, if there is none yet
	dry    bool    // of a Cmd that only measures: one block, without memory, that has no end
	zero   bool    // blocks begin as zeros
}

// arenaBlock is a buffer that scratch buffers are slices of.
type arenaBlock struct {
	buffer *Buffer
	live   spans // of scratch buffers
	used   int64 // bytes up to the last one that was ever taken since Reset
}

// taken is a scratch buffer of a block.
type taken struct {
	block *arenaBlock
	span
}

const (
	// arenaUnit is what scratch buffers begin at multiples of: no device wants more of slices.
	arenaUnit = 256
	// overlapBytes is the largest scratch buffer that does without bytes which commands still
	// use that nothing has ordered before it: those commands and what writes it
	// could not run side by side. A kernel with more fills a device by itself.
	overlapBytes = 64 << 20
	// leastBlock is the least size of a block.
	leastBlock = 256 << 10
	// dryBytes is the size of the block of a Cmd that only measures.
	dryBytes = 1 << 62
)

// Scratch returns device memory with undefined content. It belongs to c until the Scope in which it
// was taken ends; outside of a Scope, until Reset or Close. Commands after the end of a Scope reuse
// its memory, and wait for the commands before as for any others. Up to 64 MiB, they reuse only
// memory that they need not wait for. Reset keeps the memory for the next recording, in one piece,
// so that recording the same commands again allocates nothing. On failure Scratch keeps the error
// and returns a buffer that serves only to go on recording.
func (c *Cmd) Scratch(name string, bytes int64) *Buffer { return c.scratch(&c.arena, name, bytes) }

// Zeros is Scratch of memory that holds zeros, for commands that leave zeros behind, for example
// because the last one resets a counter. The host clears it when it is allocated; no command does.
// Measure does not count it.
func (c *Cmd) Zeros(name string, bytes int64) *Buffer { return c.scratch(&c.zeros, name, bytes) }

func (c *Cmd) scratch(a *arena, name string, bytes int64) *Buffer {
	if !c.begin() {
		return &Buffer{}
	}
	defer c.leave()
	b, err := c.takeScratch(a, name, bytes)
	if err != nil {
		c.err = err
		return &Buffer{}
	}
	if !a.zero {
		c.poison(b)
	}
	return b
}

// Scope begins a part of a recording; the function that it returns ends it. Memory that Scratch
// gave in between is then free for later commands. A function of a kernel package begins with
//
//	defer c.Scope()()
//
// Scopes are nested: one that ends before one that began after it, or twice, is an error of Submit.
// Reset ends all.
func (c *Cmd) Scope() (end func()) {
	if !c.enter() {
		return func() {}
	}
	defer c.leave()
	c.opened++
	s, recording := scopeMark{c.opened, len(c.arena.taken), len(c.zeros.taken)}, c.resets
	c.scopes = append(c.scopes, s)
	return func() {
		if !c.enter() {
			return
		}
		defer c.leave()
		if recording == c.resets && !c.isClosed() {
			c.endScope(s)
		}
	}
}

// scopeMark has the number of a Scope, and the numbers of scratch buffers that were taken before it.
type scopeMark struct{ number, first, zeros int }

func (c *Cmd) endScope(s scopeMark) {
	last := len(c.scopes) - 1
	switch slices.Index(c.scopes, s) {
	case -1:
		c.fail("a Scope ended twice")
	case last:
		c.scopes = c.scopes[:last]
		c.arena.release(s.first)
		c.zeros.release(s.zeros)
	default:
		c.fail("a Scope ended before one that began after it")
	}
}

func (c *Cmd) takeScratch(a *arena, name string, bytes int64) (*Buffer, error) {
	if err := c.d.checkSize(bytes); err != nil {
		return nil, fmt.Errorf("vk: buffer %q of %d bytes: %w", name, bytes, err)
	}
	need := (bytes + arenaUnit - 1) &^ (arenaUnit - 1)
	block, at := c.findScratch(a, need, need <= overlapBytes)
	if block == nil {
		var err error
		size := a.blockBytes(c.d, need)
		block, err = c.newArenaBlock(a, name, size)
		if err != nil && size > max(need, leastBlock) {
			block, err = c.newArenaBlock(a, name, need)
		}
		if err != nil {
			if block, at = c.findScratch(a, need, false); block == nil { // rather wait than fail
				return nil, err
			}
		}
	}
	block.live.add(at, at+need)
	block.used = max(block.used, at+need)
	a.taken = append(a.taken, taken{block, span{at, at + need}})
	return block.buffer.part(name, at, bytes), nil
}

// findScratch returns the first need bytes of a block that no scratch buffer has. With settled it
// skips bytes that earlier commands use, unless a barrier orders these commands before the
// dispatches to come.
func (c *Cmd) findScratch(a *arena, need int64, settled bool) (*arenaBlock, int64) {
	for _, b := range a.blocks {
		order, u := &c.tracker, c.uses[&b.buffer.object]
		if c.later != nil {
			order, u = &c.later.given, c.later.copies[u]
		}
		at := int64(0)
		for at+need <= b.buffer.bytes {
			next := b.live.next(at, at+need)
			if settled && next < 0 {
				next = order.nextPending(u, at, at+need)
			}
			if next < 0 {
				return b, at
			}
			at = (next + arenaUnit - 1) &^ (arenaUnit - 1)
		}
	}
	return nil, 0
}

// next returns the end of the first span that meets the bytes from start to end-1, -1 if there
// is none.
func (s spans) next(start, end int64) int64 {
	if i := s.after(start); i < len(s) && s[i].start < end {
		return s[i].end
	}
	return -1
}

// nextPending returns the end of a span that meets the bytes from start to end-1 and that commands
// read or write, with no barrier between them and later dispatches; -1 if there is none.
func (t *tracker) nextPending(u *use, start, end int64) int64 {
	if u == nil {
		return -1
	}
	for from := range numStages {
		x := t.since(u, from, compute)
		for _, s := range []spans{x.writes, x.reads} {
			if next := s.next(start, end); next >= 0 {
				return next
			}
		}
	}
	return -1
}

// blockBytes returns the size of the next block: as much as all so far have, so that their
// number stays small, or as much as the recording before took.
func (a *arena) blockBytes(d *Device, need int64) int64 {
	if a.dry {
		return dryBytes
	}
	size := max(a.want, leastBlock)
	if len(a.blocks) > 0 {
		size = 0
		for _, b := range a.blocks {
			size = min(size+b.buffer.bytes, 4*overlapBytes)
		}
	}
	return max(need, min(size, d.largest()))
}

func (c *Cmd) newArenaBlock(a *arena, name string, bytes int64) (*arenaBlock, error) {
	b := &Buffer{}
	b.bytes = bytes
	if !a.dry {
		bl, err := c.d.allocate(name, bytes, inDevice)
		if err != nil {
			return nil, err
		}
		b.block = bl
	}
	b.adopt(c.d, "scratch buffer", name, func() { c.d.free(b.block) })
	if a.zero && !a.dry {
		if err := View(b, dtype.Int32, int(bytes/4)).Zero(context.Background()); err != nil {
			b.unhold() // a part of the copy may be on its way
			return nil, err
		}
	}
	block := &arenaBlock{buffer: b}
	a.blocks = append(a.blocks, block)
	return block, nil
}

// release frees the scratch buffers from one on.
func (a *arena) release(first int) {
	for _, x := range a.taken[first:] {
		x.block.live.remove(x.start, x.end)
	}
	a.taken = a.taken[:first]
}

// remove removes bytes that one span of s has.
func (s *spans) remove(start, end int64) {
	i := s.after(start)
	if i == len(*s) {
		return
	}
	x := (*s)[i]
	var rest []span
	if x.start < start {
		rest = append(rest, span{x.start, start})
	}
	if end < x.end {
		rest = append(rest, span{end, x.end})
	}
	*s = slices.Replace(*s, i, i+1, rest...)
}

// close gives up all blocks; d.mu is held.
func (a *arena) close() {
	for _, b := range a.blocks {
		b.buffer.unholdLocked()
	}
	a.blocks, a.taken = nil, nil
}

// invalidate makes buffers of all blocks unusable; d.mu is held.
func (a *arena) invalidate() {
	for _, b := range a.blocks {
		b.buffer.closed = true
		b.buffer.usable.Store(false)
	}
}

// retire makes all blocks unusable, and gives them up.
func (a *arena) retire(d *Device) {
	if a.dry {
		a.blocks = nil
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	a.invalidate()
	a.close()
	d.closings++
}

// reset ends the life of all scratch buffers. A single block stays if at least half of the block
// was used, or if it is small. Otherwise the next recording gets one block of the size that was
// used.
func (a *arena) reset(d *Device) {
	used := int64(0)
	for _, b := range a.blocks {
		used += b.used
	}
	keep := len(a.blocks) == 1 && used > 0 && a.blocks[0].buffer.bytes <= max(2*used, leastBlock)
	if !keep && len(a.blocks) > 0 {
		a.want = used
		a.retire(d)
	}
	for _, b := range a.blocks {
		b.live, b.used = b.live[:0], 0
	}
	a.taken = a.taken[:0]
}

// Measure runs record on a Cmd that allocates nothing and runs nothing. It returns the bytes that
// Scratch takes. It also returns errors of recording, such as a scratch buffer larger than the device
// allows, and the error of record. Kernels are compiled.
//
// Tensors may be on buffers of Placeholder, so that nothing has to be allocated yet.
func (d *Device) Measure(record func(c *Cmd) error) (bytes int64, err error) {
	if !d.enter() {
		return 0, withPrefix(d.errClosed())
	}
	defer d.leave()
	c := &Cmd{uses: map[*object]*use{}, arena: arena{dry: true}, zeros: arena{dry: true, zero: true}}
	c.adopt(d, "cmd", "measure", func() {})
	defer c.release((*object).unhold)
	if err := record(c); err != nil {
		return 0, err
	}
	if c.err != nil {
		return 0, c.err
	}
	for _, b := range c.arena.blocks {
		bytes += b.used
	}
	return bytes, nil
}

// Placeholder returns a buffer without memory, for recording in Measure. Every other use of it is
// an error.
func (d *Device) Placeholder(name string, bytes int64) *Buffer {
	b := &Buffer{}
	b.bytes = bytes
	b.adopt(d, "placeholder", name, func() {})
	return b
}

func (b *Buffer) errNoMemory() error {
	return fmt.Errorf("%v has no memory", b)
}
