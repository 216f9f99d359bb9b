package tnp

import (
	"fmt"

	"github.com/flashvk/flashvk/vk"
)

// CheckFits returns an error if a device is known to have less memory left than a model and a plan
// of pass o.Pass take: how many bytes are missing, and what would take less. It allocates nothing.
// NewModel and NewPlan each look for what they take themselves.
func CheckFits(d *vk.Device, c Config, s Shape, o ModelOptions, p PlanOptions) error {
	heaps, err := d.Heaps()
	if err != nil {
		return err
	}
	_, _, err = fit{d.Caps(), heaps, c, s, o.Pass, o, p}.choose("model and activations", (*Memory).Bytes)
	return err
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

// choose makes the program of the plan, or returns an error if its bytes, which are of what, do not
// fit.
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
