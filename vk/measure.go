package vk

import "fmt"

// Measure runs record on a Cmd that allocates nothing and runs nothing, and returns how many
// bytes its Scratch takes: what Cmd.Reserve wants before the same recording. An error of
// recording, such as of a scratch buffer that is larger than the device has, is returned, as is
// that of record itself. Kernels are compiled.
//
// Tensors may be on buffers of Placeholder, so that nothing need be allocated yet.
func (d *Device) Measure(record func(c *Cmd) error) (bytes int64, err error) {
	if !d.enter() {
		return 0, withPrefix(d.errClosed())
	}
	defer d.leave()
	c := &Cmd{uses: map[*object]*use{}, arena: arena{dry: true}, zeros: arena{dry: true, zero: true}}
	c.adopt(d, "cmd", "measure", func() {})
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

// Placeholder returns a buffer without memory: a shape to record with in Measure. Every other
// use of it is an error.
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
