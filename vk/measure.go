package vk

import "fmt"

// Measure runs record on a Cmd that allocates nothing and runs nothing. It returns the bytes of its
// Scratch, which Cmd.Reserve takes before the same recording. It also returns errors of recording,
// such as a scratch buffer larger than the device allows, and the error of record. Kernels are
// compiled.
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

// errNoMemory is the error of using a placeholder.
func (b *Buffer) errNoMemory() error {
	return fmt.Errorf("%v has no memory", b)
}
