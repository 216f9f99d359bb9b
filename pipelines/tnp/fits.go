package tnp

import (
	"errors"
	"fmt"

	"github.com/flashvk/flashvk/internal/vk/argument"
	"github.com/flashvk/flashvk/vk"
)

// CheckFits returns an error if a device is known to have less memory left than a model and a plan
// of pass o.Pass take. The error says how many bytes are missing, and which options would take
// less. The error wraps vk.ErrUnsupported if a kernel would see less than its whole tensors, and
// says with which checkpoint or batch all kernels see whole tensors. CheckFits allocates nothing,
// and compiles the kernels of the plan. NewModel and NewPlan check only the memory that they take
// themselves.
func CheckFits(d *vk.Device, c Config, s Shape, o ModelOptions, p PlanOptions) error {
	heaps, err := d.Heaps()
	if err != nil {
		return err
	}
	if err := checkRanges(d.Caps(), c, o); err != nil {
		return err
	}
	f := fit{d.Caps(), heaps, c, s, o.Pass, o, p}
	const what = "model and activations"
	b, _, err := f.choose(what, (*Memory).Bytes)
	if err != nil {
		return err
	}
	if err = f.record(d, b); !errors.Is(err, vk.ErrUnsupported) {
		return err
	}
	fits := func() bool {
		b, _, err := f.choose(what, (*Memory).Bytes)
		return err == nil && f.record(d, b) == nil
	}
	for _, f.p.Checkpoint = range []Checkpoint{Selective, Blocks} {
		if f.p.Checkpoint != p.Checkpoint && fits() {
			return fmt.Errorf("%w; with checkpoint %v it would fit", err, f.p.Checkpoint)
		}
	}
	f.p = p
	for f.s.Batch /= 2; f.s.Batch > 0; f.s.Batch /= 2 {
		if fits() {
			return fmt.Errorf("%w; with batch %d it would fit", err, f.s.Batch)
		}
	}
	return fmt.Errorf("%w; no smaller batch would fit", err)
}

// record records a plan without its memory, and returns the error of a kernel.
func (f fit) record(d *vk.Device, b *builder) error {
	b.model = &Model{d: d, c: f.c, o: f.o}
	slots, n := f.c.slots()
	b.model.slots = slots
	for _, x := range b.model.memory() {
		*x.tensor = vk.View(d.Placeholder(x.name, x.bytes(n)), x.dtype, x.times*n)
	}
	b.model.divide(n)
	if err := b.prog.Check(d); err != nil {
		return fmt.Errorf("tnp: %w", err)
	}
	return nil
}

// checkRanges returns an error if AdamW would not see the whole buffers of a model, each of which it
// reads in one launch.
func checkRanges(caps *vk.Caps, c Config, o ModelOptions) error {
	if o.Pass < Train {
		return nil
	}
	_, n := c.slots()
	for _, x := range (&Model{c: c, o: o}).memory() {
		if bytes := x.bytes(n); uint64(bytes) > caps.MaxStorageBufferRange {
			help := "a smaller model would fit"
			if uint64(bytes/int64(x.times)) <= caps.MaxStorageBufferRange {
				help = "without accumulation they would fit"
			}
			return argument.Unsupported("tnp", "%s take %d bytes, of which AdamW sees %d: %s", x.name, bytes, caps.MaxStorageBufferRange, help)
		}
	}
	return nil
}

// A fit is a plan that heaps may have too little for.
type fit struct {
	caps  *vk.Caps
	heaps []vk.Heap
	c     Config
	s     Shape
	pass  Pass
	o     ModelOptions
	p     PlanOptions
}

// choose makes the program of the plan, or returns an error that names what if the program's bytes
// do not fit.
func (f fit) choose(what string, bytes func(*Memory) int64) (*builder, *Memory, error) {
	fits := func(m *Memory) bool { return missing(f.heaps, bytes(m)) == 0 }
	b, m, err := choose(f.caps, f.c, f.s, f.pass, f.o, f.p, fits)
	if err != nil || fits(m) {
		return b, m, err
	}
	help := "no other setting takes less"
	f.p.Checkpoint = Auto
	if _, less, err := choose(f.caps, f.c, f.s, f.pass, f.o, f.p, fits); err == nil && bytes(less) < bytes(m) {
		help = fmt.Sprintf("with checkpoint %v it would fit, %d", less.Checkpoint, bytes(less))
		if !fits(less) {
			help = fmt.Sprintf("with checkpoint %v it would take %d, too many as well", less.Checkpoint, bytes(less))
		}
	}
	return nil, nil, fmt.Errorf("tnp: %s take %d bytes, %d more than the device has left: %s", what, bytes(m), missing(f.heaps, bytes(m)), help)
}

// checkModel returns an error if the heaps have too little for a model alone.
func checkModel(heaps []vk.Heap, bytes int64) error {
	if n := missing(heaps, bytes); n > 0 {
		return fmt.Errorf("tnp: weights, gradients and moments take %d bytes, %d more than the device has left", bytes, n)
	}
	return nil
}

// missing returns how many of the bytes a device is known not to have left.
func missing(heaps []vk.Heap, bytes int64) uint64 {
	var free uint64
	for _, h := range heaps {
		switch {
		case !h.DeviceLocal:
		case h.BudgetBytes == 0: // the device does not tell
			free = max(free, h.SizeBytes)
		case h.BudgetBytes > h.UsageBytes:
			free = max(free, h.BudgetBytes-h.UsageBytes)
		}
	}
	if free == 0 || uint64(bytes) <= free {
		return 0
	}
	return uint64(bytes) - free
}
